package metered

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
)

// maxNamed is how many tenants have series of their own: the first ones seen.
const maxNamed = 200

// others is the label for all further tenants.
const others = "_others"

// names bounds the number of tenants in labels.
type names struct {
	mu    sync.Mutex
	known map[string]bool // guarded by mu
}

// label returns a tenant's name, or the label of the others.
func (n *names) label(tenant string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case tenant == "" || n.known[tenant]:
		return tenant
	case len(n.known) >= maxNamed:
		return others
	case n.known == nil:
		n.known = make(map[string]bool)
	}
	n.known[tenant] = true
	return tenant
}

// Shadowed implements tenants.Meter.
func (m *Metrics) Shadowed(tenant string, reason errs.Reason) {
	m.shadowed.WithLabelValues(m.named.label(tenant), string(reason)).Inc()
}

// Retried implements tenants.Meter.
func (m *Metrics) Retried(tenant string, taken bool) {
	result := "refused"
	if taken {
		result = "taken"
	}
	m.retries.WithLabelValues(m.named.label(tenant), result).Inc()
}

// tenantKey identifies the series of a tenant's requests.
type tenantKey struct{ tenant, class, band string }

// tenantSeries caches the counters of requests without an error.
type tenantSeries struct{ success, costs prometheus.Counter }

// maxSeries is how many series are cached: policies change, and their names with them.
const maxSeries = 10_000

func (m *Metrics) seriesOf(k tenantKey) *tenantSeries {
	if s, ok := m.series.Load(k); ok {
		return s.(*tenantSeries) //nolint:forcetypeassert // has these alone
	}
	s := &tenantSeries{m.tenants.WithLabelValues(k.tenant, k.class, k.band, "good"), m.costs.WithLabelValues(k.tenant, k.class, k.band)}
	if m.resolved.Add(1) > maxSeries {
		m.series.Clear()
		m.resolved.Store(1)
	}
	m.series.Store(k, s)
	return s
}

// tenant counts a request under a policy.
func (m *Metrics) tenant(o *path.Outcome) {
	if o.Tenant == "" {
		return
	}
	k := tenantKey{m.named.label(o.Tenant), o.Class, o.Band}
	s := m.seriesOf(k)
	if cost := o.Execution.Cost; cost > 0 {
		s.costs.Add(float64(cost) / float64(time.Millisecond))
	}
	outcome := string(o.Reason)
	switch {
	case outcome != "":
	case o.Deadline != 0 && o.Ended > o.Deadline:
		outcome = "late"
	default:
		s.success.Inc()
		return
	}
	m.tenants.WithLabelValues(k.tenant, k.class, k.band, outcome).Inc()
}
