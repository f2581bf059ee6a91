package gateway

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/nereid-serving/nereid/services/gateway/internal/rest"
)

// The metrics in which a model reports how much of its key-value cache is in use. NVIDIA's TensorRT-LLM models
// use these names.
const (
	cacheFamily = "nv_trt_llm_kv_cache_block_metrics"
	cacheLabel  = "kv_cache_block_type"
)

// loadAge is how long gathered metrics are reused: gathering takes longer than a request, and clients may ask
// with each one.
const loadAge = 100 * time.Millisecond

// load reads from this process's metrics how much of the models' key-value caches is in use. It is safe for
// concurrent use.
type load struct {
	metrics prometheus.Gatherer

	mu    sync.Mutex
	read  time.Time // guarded by mu, as are last and known
	last  rest.CacheLoad
	known bool
}

// get returns the reported cache load, or false if no model reports one. If several do, the last one wins.
func (l *load) get() (rest.CacheLoad, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.read.IsZero() && time.Since(l.read) < loadAge {
		return l.last, l.known
	}
	l.read, l.known = time.Now(), false
	families, _ := l.metrics.Gather() // partial results count even beside an error
	for _, f := range families {
		if f.GetName() == cacheFamily {
			l.last, l.known = cacheLoad(f)
		}
	}
	return l.last, l.known
}

// cacheLoad reads the metric family, or returns false if a value is missing.
func cacheLoad(f *dto.MetricFamily) (rest.CacheLoad, bool) {
	values := make(map[string]float64)
	for _, m := range f.GetMetric() {
		for _, label := range m.GetLabel() {
			if label.GetName() == cacheLabel {
				values[label.GetValue()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	used, hasUsed := values["used"]
	most, hasMost := values["max"]
	tokens, hasTokens := values["tokens_per"]
	return rest.CacheLoad{Used: used, Max: most, TokensPerBlock: tokens}, hasUsed && hasMost && hasTokens && min(used, most, tokens) >= 0
}
