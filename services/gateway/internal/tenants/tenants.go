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

// maxUnlisted is of how many tenants that the policy does not list the use is remembered:
// those that were seen last, and besides those that have requests in flight.
const maxUnlisted = 10_000

// Tenants holds the policy of a gateway, and what each tenant has used. It is safe for
// concurrent use.
type Tenants struct {
	meter   Meter
	now     func() time.Time
	current atomic.Pointer[View]
	missing atomic.Bool // calls are refused where there is no policy
	leased  atomic.Bool // limits are shared with other gateways
	short   chan struct{}

	mu         sync.Mutex
	generation uint64            // of the policy that was set last; guarded by mu
	leases     chan struct{}     // closed with the next lease; guarded by mu
	usages     map[string]*usage // by the tenant's name; guarded by mu
	recent     list.List         // of *usage that the policy does not list, the one seen last first; guarded by mu
}

// New returns tenants without a policy.
func New(meter Meter, now func() time.Time) *Tenants {
	return &Tenants{meter: meter, now: now, usages: make(map[string]*usage), short: make(chan struct{}, 1), leases: make(chan struct{})}
}

// Set replaces the policy for new calls. What tenants have used stays. Verify may be nil
// for a policy without issuers.
func (t *Tenants) Set(p *policy.Policy, verify Verifier) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.generation++
	v := &View{Policy: p, tenants: t, generation: t.generation, verify: verify, known: newRemembered(), listed: make(map[string]*Tenant)}
	for _, of := range p.Tenants() {
		made := t.tenantLocked(v, of)
		if u := made.usage; u.element != nil {
			t.recent.Remove(u.element)
			u.element = nil
		}
		v.listed[of.Name] = made
	}
	for name, u := range t.usages {
		if u.element == nil && v.listed[name] == nil { // it was listed, and is not now
			u.element = t.recent.PushFront(u)
		}
	}
	t.current.Store(v)
}

// Current returns the policy that new calls take; nil is none.
func (t *Tenants) Current() *View {
	if t == nil {
		return nil
	}
	return t.current.Load()
}

// Require has calls be refused while there is no policy, or not.
func (t *Tenants) Require(required bool) { t.missing.Store(required) }

// View returns the policy that a new call takes; nil is none. The error says that there must
// be one and is none; its reason is policy_missing.
func (t *Tenants) View() (*View, error) {
	v := t.Current()
	if v == nil && t != nil && t.missing.Load() {
		return nil, errs.New(errs.PolicyMissing, "the server has no valid policy yet, and accepts no calls without one")
	}
	return v, nil
}

// tenantLocked returns a tenant under a view's policy, with what it has used.
func (t *Tenants) tenantLocked(v *View, of *policy.Tenant) *Tenant {
	u := t.usages[of.Name]
	if u == nil {
		u = &usage{name: of.Name}
		t.usages[of.Name] = u
	}
	u.configure(of, v.generation, t.leased.Load(), t.now())
	return &Tenant{Tenant: of, view: v, usage: u}
}

// unlisted returns a tenant that the policy does not list. To remember what it uses, those
// are forgotten that were seen longest ago and have nothing in flight, where there are many.
func (t *Tenants) unlisted(v *View, of *policy.Tenant) *Tenant {
	t.mu.Lock()
	defer t.mu.Unlock()
	made := t.tenantLocked(v, of)
	u := made.usage
	if v.listed[of.Name] == nil && u.element == nil {
		u.element = t.recent.PushFront(u)
	}
	if u.element != nil {
		t.recent.MoveToFront(u.element)
	}
	for range forgottenAtOnce {
		if t.recent.Len() <= maxUnlisted {
			break
		}
		last := t.recent.Back().Value.(*usage) //nolint:forcetypeassert // of usages alone
		if last == u || last.inFlight() {
			t.recent.MoveToFront(last.element)
			continue
		}
		t.recent.Remove(last.element)
		delete(t.usages, last.name)
	}
	return made
}

// forgottenAtOnce bounds how many tenants one call examines to forget some.
const forgottenAtOnce = 16

// View is a policy as one call sees it from its start to its end.
type View struct {
	*policy.Policy
	tenants    *Tenants
	generation uint64 // later policies have higher ones
	verify     Verifier
	known      remembered
	listed     map[string]*Tenant // by name
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
		v.known.put(token, t, expires, now)
	}
	return t, err
}

// tenant returns a tenant with what it has used.
func (v *View) tenant(of *policy.Tenant) *Tenant {
	if t := v.listed[of.Name]; t != nil {
		return t
	}
	return v.tenants.unlisted(v, of)
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

// Shadowed reports whether the policy refuses nothing.
func (t *Tenant) Shadowed() bool { return t.view.Shadow }

// Secret reports whether a header, in lower case, identifies its caller: it is no property
// of the request, and neither conditions nor models see it.
func Secret(name string) bool {
	switch name {
	case "authorization", "x-api-key", "cookie", "proxy-authorization":
		return true
	}
	return false
}

// Headers are those of a call which conditions may see.
func Headers(c Credentials) func(name string) []string {
	return func(name string) []string {
		if Secret(name) {
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
