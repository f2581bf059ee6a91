package gateway

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/services/gateway/internal/rest"
)

// The metrics are gathered at most ten times a second, however often clients ask.
func TestTheLoadIsReadFromTheMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		blocks := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "nv_trt_llm_kv_cache_block_metrics"}, []string{"kv_cache_block_type"})
		registry.MustRegister(blocks)
		l := &load{metrics: registry}
		blocks.WithLabelValues("used").Set(3)
		blocks.WithLabelValues("max").Set(4)
		if got, known := l.get(); known {
			t.Errorf("known without the size of a block: %+v", got)
		}
		blocks.WithLabelValues("tokens_per").Set(16)
		if got, known := l.get(); known {
			t.Errorf("looked at again at once: %+v", got)
		}
		<-time.After(loadAge)
		if got, known := l.get(); !known || got != (rest.CacheLoad{Used: 3, Max: 4, TokensPerBlock: 16}) {
			t.Errorf("%+v, %t", got, known)
		}
	})
}
