package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types/traits"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Policy is a valid policy that has passed its own tests. It is immutable.
type Policy struct {
	// Digest identifies the policy's text: the first 8 bytes of its SHA-256, in hexadecimal
	// digits.
	Digest string
	// Shadow says that the policy counts refusals and refuses nothing.
	Shadow bool
	// Bands are the priority bands, the highest first; there is at least one.
	Bands []Band
	// Issuers are the issuers of accepted tokens.
	Issuers []Issuer
	// RetryBudget is how many retries a tenant may send for each of its other requests;
	// negative is no limit.
	RetryBudget float64

	// Tests are the names of the policy's own tests, which have passed.
	Tests []string

	tiers        map[string]*Tenant // what their tenants begin as
	tenants      map[string]*Tenant
	anonymous    *Tenant // nil: callers without credentials are refused
	keys         map[[sha256.Size]byte]credential
	certificates []pattern
	subjects     []pattern
	labels       map[string]map[string]int64
	classes      []class
	routes       []route
	headers      traits.Mapper
}

// Band is a priority band.
type Band struct {
	Name string
	// Minimum is the guaranteed share of device time of the band, from 0 to 1.
	Minimum float64
}

// Tenant is a party whose requests are counted together.
type Tenant struct {
	// Name identifies the tenant: no two tenants of a policy have the same one. A tenant
	// that the policy lists has its name there; one that a token names and the policy does
	// not list is called NAME@ISSUER.
	Name, Tier string
	// Weight is the tenant's share relative to others.
	Weight float64
	// Limits and Budgets bound what the tenant uses.
	Limits  Limits
	Budgets []Budget
	// Recording says how much of the tenant's requests recordings contain.
	Recording Recording

	band     int
	deadline time.Duration
	models   patterns // nil: all
	apis     []string
	issuers  []string // whose tokens may be this tenant's; nil: any
}

// Recording says how much of requests recordings contain.
type Recording string

const (
	// RecordNothing leaves the requests out.
	RecordNothing Recording = "nothing"
	// RecordShapes has times, models, and the names, datatypes and shapes of inputs.
	RecordShapes Recording = "shapes"
	// RecordContents has whole requests and responses.
	RecordContents Recording = "contents"
)

// Limits bound what a tenant uses; 0 is no bound.
type Limits struct {
	// Requests, CostUnits and Bytes are per second.
	Requests, CostUnits, Bytes float64
	// Burst is how long unused amounts accumulate.
	Burst time.Duration
	// Concurrency is how many requests may be in flight.
	Concurrency int
	// Memory is how many bytes the requests in flight and their responses may hold.
	Memory int64
}

// Budget bounds what a tenant uses in a window of time; 0 is no bound.
type Budget struct {
	Requests, CostUnits float64
	Per                 time.Duration
}

// Issuer issues tokens.
type Issuer struct {
	Name, Audience, JWKS string
	tenantClaim, tier    string
}

// Request is the request that a policy decides about. Fields that are not known yet are zero.
type Request struct {
	Model, Version string
	// Header returns the values of a header, whose name is in lower case. It may be nil.
	Header func(name string) []string
	// BatchSize, Elements and Bytes are the sizes of the request: its rows, and the
	// elements and bytes of all inputs.
	BatchSize, Elements, Bytes int64
	Priority                   uint64
	// Inputs calls a function with the shape of each input. It may be nil.
	Inputs func(func(name string, shape []int64))
}

// Target is the destination of a request.
type Target struct {
	// Model and Version are as clients name them.
	Model, Version string
}

// Class is the classification of a request.
type Class struct {
	// Name is the cost class, or empty.
	Name string
	// Band is the index of the request's band.
	Band int
	// Deadline is that of a request which states none, since its arrival; 0 is none.
	Deadline time.Duration
}

type credential struct {
	tenant  *Tenant
	name    string
	expires time.Time // zero is never
}

// pattern says whose the names are that are like it.
type pattern struct {
	like   string
	tenant *Tenant
}

type condition struct {
	models, tenants, tiers patterns // nil: any
	when                   cel.Program
}

type class struct {
	Class
	condition
	band bool // the class names one
}

type route struct {
	condition
	to     []target
	weight float64 // of all targets
	sticky cel.Program
	salt   string
}

type target struct {
	Target
	label  string
	weight float64
}

// Key returns the SHA-256 of an API key, as it is written in a policy.
func Key(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// Tenant returns a tenant of the policy; nil if it has none of that name.
func (p *Policy) Tenant(name string) *Tenant { return p.tenants[name] }

// Tenants lists the tenants by name, the anonymous one, if there is one, last.
func (p *Policy) Tenants() []*Tenant {
	list := make([]*Tenant, 0, len(p.tenants)+1)
	for _, t := range p.tenants {
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b *Tenant) int { return strings.Compare(a.Name, b.Name) })
	if p.anonymous != nil {
		list = append(list, p.anonymous)
	}
	return list
}

// Anonymous is the tenant of callers without credentials, or an error of the reason
// token_missing.
func (p *Policy) Anonymous() (*Tenant, error) {
	if p.anonymous == nil {
		return nil, errs.New(errs.TokenMissing, "the request has no credentials: send an API key, as  Authorization: Bearer KEY  or  X-API-Key: KEY")
	}
	return p.anonymous, nil
}

// Unknown is the tenant of callers of whom nothing else is known, in shadow mode: the
// anonymous one, or one without bounds.
func (p *Policy) Unknown() *Tenant {
	if p.anonymous != nil {
		return p.anonymous
	}
	return &Tenant{Name: AnonymousName, Weight: 1, band: len(p.Bands) - 1, apis: APIs()}
}

// ByKey is the tenant of an API key. The error is of the reason token_invalid.
func (p *Policy) ByKey(key string, now time.Time) (*Tenant, error) {
	c, ok := p.keys[sha256.Sum256([]byte(key))]
	switch {
	case !ok:
		return nil, errs.New(errs.TokenInvalid, "the API key is unknown")
	case !c.expires.IsZero() && !now.Before(c.expires):
		return nil, errs.New(errs.TokenInvalid, "the API key %q has expired on %s", c.name, c.expires.Format(time.DateOnly))
	}
	return c.tenant, nil
}

// ByCertificate is the tenant of a client's certificate, of which these are the names;
// nil if they are nobody's.
func (p *Policy) ByCertificate(names []string) *Tenant {
	for _, name := range names {
		if t := owner(p.certificates, name); t != nil {
			return t
		}
	}
	return nil
}

// ByToken is the tenant of a token that was verified, with its claims. The error is of
// the reason token_invalid.
func (p *Policy) ByToken(by *Issuer, claims map[string]any) (*Tenant, error) {
	if by.tenantClaim == "" {
		subject, _ := claims["sub"].(string)
		for _, c := range p.subjects {
			if c.tenant.named(by) && like(c.like, subject) {
				return c.tenant, nil
			}
		}
		return nil, errs.New(errs.TokenInvalid, "the token's subject %q is no tenant's", shown(subject))
	}
	name, _ := claims[by.tenantClaim].(string)
	if t := p.tenants[name]; t != nil && t.named(by) {
		return t, nil
	}
	if name == "" || by.tier == "" {
		return nil, errs.New(errs.TokenInvalid, "the token's claim %q names no tenant of the policy: %q", by.tenantClaim, shown(name))
	}
	if err := checkTenantName(name); err != nil {
		return nil, errs.Wrap(errs.TokenInvalid, err, "the token's claim %q names no tenant: %v", by.tenantClaim, err)
	}
	t := *p.tiers[by.tier]
	t.Name = name + "@" + by.Name
	return &t, nil
}

// shown is as much of what a token says as an error repeats.
func shown(text string) string { return text[:min(len(text), maxTenantName)] }

// named reports whether an issuer's tokens may be a tenant's.
func (t *Tenant) named(by *Issuer) bool {
	return t.issuers == nil || slices.Contains(t.issuers, by.Name)
}

func owner(list []pattern, name string) *Tenant {
	for _, c := range list {
		if like(c.like, name) {
			return c.tenant
		}
	}
	return nil
}

// MayCall refuses a tenant that may not call an API; the reason is tenant_forbidden.
func (t *Tenant) MayCall(api string) error {
	if slices.Contains(t.apis, api) {
		return nil
	}
	if t.Name == AnonymousName {
		return errs.New(errs.TenantForbidden, "callers without credentials may not call the API %s: send an API key", api)
	}
	return errs.New(errs.TenantForbidden, "tenant '%s' may not call the API %s", t.Name, api)
}

// Models are the patterns of those that the tenant may use; nil is all.
func (t *Tenant) Models() []string { return t.models }

// APIs are those that the tenant may call.
func (t *Tenant) APIs() []string { return t.apis }

// Band is the index of the band of requests whose class names none.
func (t *Tenant) Band() int { return t.band }

// MayUse refuses a tenant that may not use a model; the reason is tenant_forbidden.
func (t *Tenant) MayUse(model string) error {
	if t.models == nil || t.models.match(model) {
		return nil
	}
	return errs.New(errs.TenantForbidden, "tenant '%s' may not use model '%s'", t.Name, model).WithModel(model)
}

// holds reports whether a condition holds for a request.
func (c *condition) holds(e *evaluation) bool {
	return (c.models == nil || c.models.match(e.of.Model)) &&
		(c.tenants == nil || c.tenants.match(e.tenant.Name)) &&
		(c.tiers == nil || c.tiers.match(e.tenant.Tier)) &&
		(c.when == nil || e.matches(c.when))
}

// Route says where a request goes: to the target of its first route, or where its
// client has named. Draw is a random number of [0, 1), which takes a target of several
// where the route is not sticky.
func (p *Policy) Route(t *Tenant, r *Request, draw float64) Target {
	goes := Target{Model: r.Model, Version: r.Version}
	if n, ok := p.labels[r.Model][r.Version]; ok {
		goes.Version = strconv.FormatInt(n, 10)
	}
	e := &evaluation{policy: p, tenant: t, of: r}
	for i := range p.routes {
		if route := &p.routes[i]; route.holds(e) {
			return p.aim(goes, route.pick(e, draw))
		}
	}
	return goes
}

// aim has a request go to a target instead.
func (p *Policy) aim(goes Target, to *target) Target {
	if to.Model != "" && to.Model != goes.Model {
		goes = Target{Model: to.Model}
	}
	if to.Version != "" {
		goes.Version = to.Version
	}
	if to.label != "" {
		goes.Version = strconv.FormatInt(p.labels[goes.Model][to.label], 10)
	}
	return goes
}

// pick takes one of a route's targets by their weights.
func (r *route) pick(e *evaluation, draw float64) *target {
	if r.sticky != nil {
		if text := e.text(r.sticky); text != "" {
			sum := fnv.New64a()
			_, _ = sum.Write([]byte(r.salt + "\x00" + text))
			draw = float64(mix(sum.Sum64())>>11) / (1 << 53)
		}
	}
	at := draw * r.weight
	for i := range r.to {
		if at -= r.to[i].weight; at < 0 {
			return &r.to[i]
		}
	}
	return &r.to[len(r.to)-1]
}

// mix spreads the bits of a hash, since FNV's high ones hardly differ for short texts:
// the finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
func mix(v uint64) uint64 {
	v = (v ^ v>>30) * 0xbf58476d1ce4e5b9
	v = (v ^ v>>27) * 0x94d049bb133111eb
	return v ^ v>>31
}

// Classify returns the class of a tenant's request.
func (p *Policy) Classify(t *Tenant, r *Request) Class {
	e := &evaluation{policy: p, tenant: t, of: r}
	is := Class{Band: t.band, Deadline: t.deadline}
	for i := range p.classes {
		c := &p.classes[i]
		if !c.holds(e) {
			continue
		}
		is.Name = c.Name
		if c.band {
			is.Band = c.Band
		}
		if c.Deadline > 0 {
			is.Deadline = c.Deadline
		}
		break
	}
	return is
}
