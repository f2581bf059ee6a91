package metered

import (
	"cmp"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
)

// maxNamed is how many tenants have series of their own: those seen first.
const maxNamed = 200

// others is the label of the tenants beyond these.
const others = "_others"

// names bounds the tenants in labels.
type names struct {
	mu    sync.Mutex
	known map[string]bool // guarded by mu
}

// label is a tenant's name, or that of the others.
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

// tenant counts a request under a policy.
func (m *Metrics) tenant(o *path.Outcome) {
	if o.Tenant == "" {
		return
	}
	outcome := cmp.Or(string(o.Reason), "good")
	if o.Reason == "" && o.Deadline != 0 && o.Ended > o.Deadline {
		outcome = "late"
	}
	tenant := m.named.label(o.Tenant)
	m.tenants.WithLabelValues(tenant, o.Class, o.Band, outcome).Inc()
	if cost := o.Execution.Cost; cost > 0 {
		m.costs.WithLabelValues(tenant, o.Class, o.Band).Add(float64(cost) / float64(time.Millisecond))
	}
}
