// Package tenants applies a policy to the calls of a gateway: which tenant calls, what it may use, and how much
// of it.
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

// Verifier verifies JSON web tokens. It is safe for concurrent use and does not wait for the network.
type Verifier interface {
	// Verify returns a token's issuer, its claims and its expiry. The error has the reason token_invalid.
	Verify(token string) (by *policy.Issuer, claims map[string]any, expires time.Time, err error)
}

// Meter counts what policies refuse. It is safe for concurrent use and does not block.
type Meter interface {
	// Shadowed is called with each refusal that a policy in shadow mode did not enforce.
	Shadowed(tenant string, reason errs.Reason)
	// Retried is called with each retry of a tenant, and whether it was accepted.
	Retried(tenant string, taken bool)
}

// maxUnlisted is the number of tenants, not listed in the policy, whose use is remembered: the most recently
// seen, plus those with requests in flight.
const maxUnlisted = 10_000

// Tenants holds the policy of a gateway and what each tenant has used. It is safe for concurrent use.
type Tenants struct {
	meter   Meter
	now     func() time.Time
	current atomic.Pointer[View]
	missing atomic.Bool // calls are refused while there is no policy
	leased  atomic.Bool // limits are shared with other gateways
	short   chan struct{}

	mu         sync.Mutex
	generation uint64            // of the latest policy; guarded by mu
	leases     chan struct{}     // closed with the next lease; guarded by mu
	usages     map[string]*usage // by the tenant's name; guarded by mu
	recent     list.List         // *usage of tenants that the policy does not list, most recently seen first; guarded by mu
}

// New returns tenants without a policy.
func New(meter Meter, now func() time.Time) *Tenants {
	return &Tenants{meter: meter, now: now, usages: make(map[string]*usage), short: make(chan struct{}, 1), leases: make(chan struct{})}
}

// Set replaces the policy for new calls. What tenants have used is kept. verify may be nil for a policy without
// issuers.
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
		if u.element == nil && v.listed[name] == nil { // it was listed before
			u.element = t.recent.PushFront(u)
		}
	}
	t.current.Store(v)
}

// Current returns the policy for new calls, or nil if there is none.
func (t *Tenants) Current() *View {
	if t == nil {
		return nil
	}
	return t.current.Load()
}

// Require sets whether calls are refused while there is no policy.
func (t *Tenants) Require(required bool) { t.missing.Store(required) }

// View returns the policy for a new call, or nil if there is none. If a policy is required and missing, it
// returns an error with the reason policy_missing.
func (t *Tenants) View() (*View, error) {
	v := t.Current()
	if v == nil && t != nil && t.missing.Load() {
		return nil, errs.New(errs.PolicyMissing, "the server has no valid policy yet, and accepts no calls without one")
	}
	return v, nil
}

// tenantLocked returns a tenant under a view's policy, with its usage.
func (t *Tenants) tenantLocked(v *View, of *policy.Tenant) *Tenant {
	u := t.usages[of.Name]
	if u == nil {
		u = &usage{name: of.Name}
		t.usages[of.Name] = u
	}
	u.configure(of, v.generation, t.leased.Load(), t.now())
	return &Tenant{Tenant: of, view: v, usage: u}
}

// unlisted returns a tenant that the policy does not list. To bound what is remembered, it forgets the tenants
// that were seen longest ago and have nothing in flight.
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

// forgottenAtOnce bounds how many tenants one call examines in order to forget some.
const forgottenAtOnce = 16

// View is the policy that one call sees from start to end.
type View struct {
	*policy.Policy
	tenants    *Tenants
	generation uint64 // later policies have higher ones
	verify     Verifier
	known      remembered
	listed     map[string]*Tenant // by name
}

// Tenant is a tenant under a view's policy, with its usage.
type Tenant struct {
	*policy.Tenant
	view  *View
	usage *usage
}

// Credentials are what a transport knows about the caller.
type Credentials interface {
	// Header returns the values of a header.
	Header(name string) []string
	// Names returns the names in the client's verified certificate, or nil without one.
	Names() []string
}

// maxCredential is the maximum length of a key or token in bytes.
const maxCredential = 16 << 10

// Identify determines the tenant of a call: by its API key or token, otherwise by its client's certificate,
// otherwise it is anonymous. The error has the reason token_missing or token_invalid.
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

// credential returns the key or token that a call carries.
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

// byToken verifies a token, unless it was verified recently.
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

// tenant returns a tenant with its usage.
func (v *View) tenant(of *policy.Tenant) *Tenant {
	if t := v.listed[of.Name]; t != nil {
		return t
	}
	return v.tenants.unlisted(v, of)
}

// Refuse returns an error that refuses a call of a tenant, or nil if the policy is in shadow mode, which only
// counts it.
func (t *Tenant) Refuse(err error) error {
	if err == nil || !t.view.Shadow {
		return err
	}
	t.view.tenants.meter.Shadowed(t.Name, errs.Of(err))
	return nil
}

// Shadowed reports whether the policy is in shadow mode and refuses nothing.
func (t *Tenant) Shadowed() bool { return t.view.Shadow }

// Secret reports whether a header, given in lower case, identifies the caller. Such a header is not a property
// of the request: neither conditions nor models see it.
func Secret(name string) bool {
	switch name {
	case "authorization", "x-api-key", "cookie", "proxy-authorization":
		return true
	}
	return false
}

// Headers returns the headers of a call that conditions may see.
func Headers(c Credentials) func(name string) []string {
	return func(name string) []string {
		if Secret(name) {
			return nil
		}
		return c.Header(name)
	}
}

// Attempts reports whether a call was sent before, according to its client or proxy.
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
