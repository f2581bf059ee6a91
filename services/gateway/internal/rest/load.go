package rest

import (
	"net/http"
	"strconv"
)

// Headers by which clients learn how busy a server of language models is, as defined by Open Request Cost
// Aggregation.
const (
	headerLoadFormat = "Endpoint-Load-Metrics-Format"
	headerLoad       = "Endpoint-Load-Metrics"
)

// CacheLoad is how much of a key-value cache is in use, in blocks of tokens.
type CacheLoad struct{ Used, Max, TokensPerBlock float64 }

// setLoad reports the load to a request that asks for it. It sets no header if the load or the format is
// unknown.
func (c *call) setLoad(h http.Header) {
	format := c.http.Header.Get(headerLoadFormat)
	if c.options.Load == nil || format != "json" && format != "text" {
		return
	}
	load, known := c.options.Load()
	if !known {
		return
	}
	utilization := 0.0
	if load.Max > 0 {
		utilization = load.Used / load.Max
	}
	capacity := strconv.FormatFloat(load.Max*load.TokensPerBlock, 'f', 0, 64)
	if format == "json" {
		h.Set(headerLoad, `JSON {"named_metrics":{"kv_cache_utilization":`+strconv.FormatFloat(utilization, 'f', -1, 64)+`,"max_token_capacity":`+capacity+`}}`)
		return
	}
	h.Set(headerLoad, "TEXT named_metrics.kv_cache_utilization="+strconv.FormatFloat(utilization, 'f', 6, 64)+", named_metrics.max_token_capacity="+capacity)
}
