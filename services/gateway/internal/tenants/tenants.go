// Package tenants applies a policy to the calls of a gateway: whose they are, what
// they may use, and how much of it.
package tenants

import (
	"container/list"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/policy"
)

// Verifier verifies JSON web tokens. It is safe for concurrent use and does not wait for
// the network.
type Verifier interface {
	// Verify returns who has issued a token, its claims and when it expires. The error is
	// of the reason token_invalid.
	Verify(token string) (by *policy.Issuer, claims map[string]any, expires time.Time, err error)
}

// Meter counts what policies refuse. It is safe for concurrent use and does not block.
type Meter interface {
	// Shadowed is called with what a policy in shadow mode would have refused.
	Shadowed(tenant string, reason errs.Reason)
	// Retried is called with each retry of a tenant, and whether it was taken.
	Retried(tenant string, taken bool)
}

// maxDynamic is of how many tenants that no policy lists the use is remembered: those
// that were seen last.
const maxDynamic = 10_000

// Tenants holds the policy of a gateway, and what each tenant has used. It is safe for
// concurrent use.
type Tenants struct {
	meter   Meter
	now     func() time.Time
	current atomic.Pointer[View]
	leased  atomic.Bool // limits are shared with other gateways
	short   chan struct{}
	leases  chan struct{} // closed with the next lease; guarded by mu

	mu     sync.Mutex
	usages map[string]*list.Element // of *usage; guarded by mu
	recent list.List                // of *usage, the one seen last first; guarded by mu
}

// New returns tenants without a policy.
func New(meter Meter, now func() time.Time) *Tenants {
	return &Tenants{meter: meter, now: now, usages: make(map[string]*list.Element), short: make(chan struct{}, 1), leases: make(chan struct{})}
}

// Set replaces the policy for new calls. What tenants have used stays. Verify may be nil
// for a policy without issuers; a nil policy is none.
func (t *Tenants) Set(p *policy.Policy, verify Verifier) {
	if p == nil {
		t.current.Store(nil)
		return
	}
	t.current.Store(&View{Policy: p, tenants: t, verify: verify, known: newRemembered()})
}

// Current returns the policy that new calls take; nil is none.
func (t *Tenants) Current() *View {
	if t == nil {
		return nil
	}
	return t.current.Load()
}

// usage returns what a tenant has used.
func (t *Tenants) usage(of *policy.Tenant) *usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.usages[of.Name]
	if e == nil {
		e = t.recent.PushFront(&usage{name: of.Name})
		t.usages[of.Name] = e
	}
	t.recent.MoveToFront(e)
	for last := t.recent.Back(); t.recent.Len() > maxDynamic && last != e; last = t.recent.Back() {
		delete(t.usages, t.recent.Remove(last).(*usage).name) //nolint:forcetypeassert // of usages alone
	}
	u := e.Value.(*usage) //nolint:forcetypeassert // of usages alone
	u.configure(of, t.leased.Load(), t.now())
	return u
}

// View is a policy as one call sees it from its beginning to its end.
type View struct {
	*policy.Policy
	tenants *Tenants
	verify  Verifier
	known   remembered

	mu     sync.Mutex
	active map[string]*Tenant // guarded by mu
}

// Tenant is a tenant under a view's policy, with what it has used.
type Tenant struct {
	*policy.Tenant
	view  *View
	usage *usage
}

// Credentials are what a transport knows of who calls.
type Credentials interface {
	// Header returns the values of a header.
	Header(name string) []string
	// Names are those in the client's certificate, which its connection has verified; nil
	// without one.
	Names() []string
}

// maxCredential is the most bytes of a key or token.
const maxCredential = 16 << 10

// Identify finds out whose a call is: by its API key or token, else by its client's
// certificate, else it is nobody's. The error is of the reason token_missing or
// token_invalid.
func (v *View) Identify(c Credentials) (*Tenant, error) {
	of, err := v.identify(c)
	if err != nil {
		if !v.Shadow {
			return nil, err
		}
		v.tenants.meter.Shadowed("", errs.Of(err))
		of = v.Unknown()
	}
	return v.tenant(of), nil
}

func (v *View) identify(c Credentials) (*policy.Tenant, error) {
	secret, err := credential(c)
	switch {
	case err != nil:
		return nil, err
	case strings.Count(secret, ".") == 2 && len(v.Issuers) > 0:
		return v.byToken(secret)
	case secret != "":
		return v.ByKey(secret, v.tenants.now())
	}
	if names := c.Names(); len(names) > 0 {
		if t := v.ByCertificate(names); t != nil {
			return t, nil
		}
	}
	return v.Anonymous()
}

// credential returns the key or token that a call has.
func credential(c Credentials) (string, error) {
	secret := ""
	for _, value := range c.Header("authorization") {
		scheme, rest, _ := strings.Cut(value, " ")
		if !strings.EqualFold(scheme, "bearer") {
			return "", errs.New(errs.TokenInvalid, "the header Authorization has no bearer token: write  Authorization: Bearer KEY")
		}
		secret = strings.TrimSpace(rest)
	}
	if keys := c.Header("x-api-key"); secret == "" && len(keys) > 0 {
		secret = strings.TrimSpace(keys[0])
	}
	if len(secret) > maxCredential {
		return "", errs.New(errs.TokenInvalid, "the credentials have more than %d bytes", maxCredential)
	}
	return secret, nil
}

// byToken verifies a token, unless it was lately.
func (v *View) byToken(token string) (*policy.Tenant, error) {
	now := v.tenants.now()
	if t := v.known.get(token, now); t != nil {
		return t, nil
	}
	if v.verify == nil {
		return nil, errs.New(errs.TokenInvalid, "the server verifies no tokens")
	}
	by, claims, expires, err := v.verify.Verify(token)
	if err != nil {
		return nil, err
	}
	t, err := v.ByToken(by, claims)
	if err == nil {
		v.known.put(token, t, expires)
	}
	return t, err
}

// tenant returns a tenant with what it has used. Those that the policy lists are kept.
func (v *View) tenant(of *policy.Tenant) *Tenant {
	v.mu.Lock()
	defer v.mu.Unlock()
	if t := v.active[of.Name]; t != nil {
		return t
	}
	t := &Tenant{Tenant: of, view: v, usage: v.tenants.usage(of)}
	if v.active == nil {
		v.active = make(map[string]*Tenant)
	}
	if len(v.active) >= maxDynamic {
		clear(v.active)
	}
	v.active[of.Name] = t
	return t
}

// Refuse returns an error that refuses a call of a tenant, or nil where the policy
// is in shadow mode, which counts it alone.
func (t *Tenant) Refuse(err error) error {
	if err == nil || !t.view.Shadow {
		return err
	}
	t.view.tenants.meter.Shadowed(t.Name, errs.Of(err))
	return nil
}

// hidden are headers that conditions do not see: what identifies a caller is no
// property of the request.
func hidden(name string) bool {
	switch name {
	case "authorization", "x-api-key", "cookie", "proxy-authorization":
		return true
	}
	return false
}

// Headers are those of a call which conditions may see.
func Headers(c Credentials) func(name string) []string {
	return func(name string) []string {
		if hidden(name) {
			return nil
		}
		return c.Header(name)
	}
}

// Attempts is how often a call was sent before, as its client or proxy says.
func Attempts(c Credentials) bool {
	for _, value := range c.Header("grpc-previous-rpc-attempts") {
		if value != "" && value != "0" {
			return true
		}
	}
	for _, value := range c.Header("x-envoy-attempt-count") {
		if value != "" && value != "0" && value != "1" {
			return true
		}
	}
	return false
}
