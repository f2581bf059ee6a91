package policy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
)

// AnonymousName is the name of the tenant of callers without credentials.
const AnonymousName = "anonymous"

// APIs are the groups of endpoints that tenants are allowed, under the names of
// Triton's --http-restricted-api, and those that explain and record requests.
func APIs() []string {
	return slices.Concat(openAPIs(), []string{"model-repository", "shared-memory", "trace", "logging", "recording"})
}

// openAPIs are those that tenants may call whose tier says nothing of it.
func openAPIs() []string {
	return []string{"health", "metadata", "inference", "model-config", "statistics", "explain"}
}

// compiler makes a policy of a document.
type compiler struct {
	*reader
	d           *document
	p           *Policy
	bands       map[string]int
	expressions *expressions
	programs    literals
}

func (r *reader) compile(d *document) *Policy {
	e, err := newExpressions()
	if err != nil {
		r.report(nil, "", "expressions cannot be compiled: %v", err)
		return nil
	}
	c := &compiler{
		reader: r, d: d, expressions: e, programs: make(literals), bands: make(map[string]int),
		p: &Policy{
			Shadow: d.Shadow, RetryBudget: -1, tiers: make(map[string]*Tenant), tenants: make(map[string]*Tenant),
			keys: make(map[[sha256.Size]byte]credential), labels: d.Labels, headers: emptyHeaders(),
		},
	}
	if d.Version != 1 {
		c.report([]any{"version"}, "write  version: 1", "the version of the format is %d", d.Version)
	}
	if d.Retries != nil {
		c.p.RetryBudget = float64(d.Retries.Budget)
	}
	c.compileBands()
	c.compileTiers()
	c.compileTenants()
	c.compileIssuers()
	c.compileClasses()
	c.compileRoutes()
	return c.p
}

// sorted returns the names of a map in their order, so that findings have one.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func (c *compiler) compileBands() {
	total := 0.0
	for i, b := range c.d.Bands {
		at := []any{"bands", i}
		if b.Name == "" {
			c.report(at, "write  name: NAME", "the band has no name")
		}
		if _, twice := c.bands[b.Name]; twice {
			c.report(at, "give each band a name of its own", "the band %q is there twice", b.Name)
		}
		c.bands[b.Name] = i
		total += float64(b.Minimum)
		c.p.Bands = append(c.p.Bands, Band{Name: b.Name, Minimum: float64(b.Minimum)})
	}
	if total > 1 {
		c.report([]any{"bands"}, "lower some", "the bands' minimum shares are %.0f%% together, and may be 100%%", 100*total)
	}
	if len(c.p.Bands) > MaxBands {
		c.report([]any{"bands"}, "merge some", "there are %d bands, and may be %d", len(c.p.Bands), MaxBands)
	}
	if len(c.p.Bands) == 0 {
		c.p.Bands = []Band{{Name: "default"}}
	}
}

// MaxBands is the maximum number of bands.
const MaxBands = 16

// band finds a band by its name; no name is the lowest.
func (c *compiler) band(name string, path ...any) int {
	if name == "" {
		return len(c.p.Bands) - 1
	}
	i, ok := c.bands[name]
	if !ok {
		c.report(path, nearest(c.reader, name, c.bands), "there is no band %q", name)
	}
	return i
}

func (c *compiler) compileTiers() {
	for _, name := range sorted(c.d.Tiers) {
		d, at := c.d.Tiers[name], []any{"tiers", name}
		limits := func(field string) []any { return append(at, "limits", field) }
		t := &Tenant{
			Tier: name, Weight: 1, Recording: c.recording(d.Recording, at), deadline: time.Duration(d.Deadline), models: c.models(d.Models, at), apis: openAPIs(),
			Limits: Limits{
				Requests:    limit(c, d.Limits.RequestsPerSecond, limits("requests_per_second")),
				CostUnits:   limit(c, d.Limits.CostUnitsPerSecond, limits("cost_units_per_second")),
				Bytes:       float64(limit(c, d.Limits.BytesPerSecond, limits("bytes_per_second"))),
				Burst:       cmp.Or(time.Duration(d.Limits.Burst), time.Second),
				Concurrency: limit(c, d.Limits.Concurrency, limits("concurrency")),
				Memory:      int64(limit(c, d.Limits.Memory, limits("memory"))),
			},
		}
		if d.Weight != nil {
			if t.Weight = *d.Weight; !(t.Weight > 0 && t.Weight < most) {
				c.report(append(at, "weight"), "give a number above 0; a lower band has tenants wait for all others", "the weight %v is not allowed here", t.Weight)
			}
		}
		t.band = c.band(d.Band, append(at, "band")...)
		if d.APIs != nil {
			t.apis = c.apis(d.APIs, at)
		}
		for i := range d.Budgets {
			t.Budgets = append(t.Budgets, c.budget(&d.Budgets[i], append(at, "budgets", i)))
		}
		c.p.tiers[name] = t
	}
}

func (c *compiler) budget(d *budgetDocument, at []any) Budget {
	switch {
	case d.Per == 0:
		c.report(at, "write  per: 24h", "the budget has no window")
	case d.Requests == nil && d.CostUnits == nil:
		c.report(at, "write  requests: N  or  cost_units: N", "the budget bounds nothing")
	}
	return Budget{
		Requests: limit(c, d.Requests, append(at, "requests")), CostUnits: limit(c, d.CostUnits, append(at, "cost_units")),
		Per: time.Duration(d.Per),
	}
}

// most is above every number of a policy.
const most = 1e15

// limit is a bound, or 0 where there is none. A bound of 0 is a finding: people write it
// for "nothing" and for "no bound".
func limit[N float64 | int | Size](c *compiler, v *N, at []any) N {
	if v == nil {
		return 0
	}
	if n := float64(*v); !(n > 0 && n < most) {
		c.report(at, "give a number above 0, or leave the field out for no bound", "%v is not allowed here", *v)
	}
	return *v
}

// filled adds a finding where a list is there and empty.
func (c *compiler) filled(list []string, at []any, fix string) {
	if list != nil && len(list) == 0 {
		c.report(at, fix, "the list is empty")
	}
}

func (c *compiler) models(list []string, at []any) patterns {
	c.filled(list, append(at, "models"), "name models, or leave the field out for all of them")
	return list
}

func (c *compiler) apis(list []string, at []any) []string {
	c.filled(list, append(at, "apis"), "name APIs, or leave the field out for those that are open by default")
	known := make(map[string]bool)
	for _, api := range APIs() {
		known[api] = true
	}
	for i, api := range list {
		if !known[api] {
			c.report(append(at, "apis", i), nearest(c.reader, api, known), "there is no API %q", api)
		}
	}
	return list
}

func (c *compiler) recording(text string, at []any) Recording {
	switch r := cmp.Or(Recording(text), RecordShapes); r {
	case RecordNothing, RecordShapes, RecordContents:
		return r
	}
	c.report(append(at, "recording"), "write  nothing,  shapes  or  contents", "recordings cannot have %q", text)
	return RecordNothing
}

// tier finds a tier by its name; no name is one without bounds.
func (c *compiler) tier(name string, path ...any) Tenant {
	if t := c.p.tiers[name]; t != nil {
		return *t
	}
	if name != "" {
		c.report(path, nearest(c.reader, name, c.d.Tiers), "there is no tier %q", name)
	}
	return Tenant{Weight: 1, Recording: RecordShapes, band: len(c.p.Bands) - 1, apis: openAPIs()}
}

func (c *compiler) compileTenants() {
	for _, name := range sorted(c.d.Tenants) {
		d, at := c.d.Tenants[name], []any{"tenants", name}
		if err := checkTenantName(name); err != nil {
			c.report(at, "give another name, of at most 128 characters", "%v", err)
		}
		for i := range c.d.Tokens {
			if issuer := c.d.Tokens[i].Issuer; strings.HasSuffix(name, "@"+issuer) {
				c.report(at, "give another name", "tenants that issuer %q names are called NAME@%s", issuer, issuer)
			}
		}
		t := c.tier(d.Tier, append(at, "tier")...)
		t.Name = name
		if d.Models != nil {
			t.models = c.models(d.Models, at)
		}
		if d.APIs != nil {
			t.apis = c.apis(d.APIs, at)
		}
		c.p.tenants[name] = &t
		c.credentials(&t, &d, at)
		c.issuers(&t, &d, at)
	}
	if c.d.Anonymous != nil {
		t := c.tier(c.d.Anonymous.Tier, "anonymous", "tier")
		t.Name = AnonymousName
		c.p.anonymous = &t
	}
	if len(c.p.tenants) == 0 && c.p.anonymous == nil && len(c.d.Tokens) == 0 {
		c.report(nil, "add tenants, or  anonymous: {}", "nobody may send requests: there is neither a tenant nor anonymous")
	}
}

func (c *compiler) credentials(t *Tenant, d *tenantDocument, at []any) {
	for i, k := range d.Keys {
		path := append(at, "keys", i)
		sum, err := hex.DecodeString(k.SHA256)
		if err != nil || len(sum) != sha256.Size || strings.ToLower(k.SHA256) != k.SHA256 {
			// The text is not shown: it may be the key itself.
			c.report(append(path, "sha256"), "make a key with  nereid policy key  and give what it prints", "want the SHA-256 of a key, in 64 hexadecimal digits of lower case")
			continue
		}
		digest := [sha256.Size]byte(sum)
		if other, twice := c.p.keys[digest]; twice {
			c.report(path, "give each tenant keys of its own", "the key is that of tenant %q, too", other.tenant.Name)
		}
		expires := time.Time(k.Expires)
		c.p.keys[digest] = credential{tenant: t, name: cmp.Or(k.Name, k.SHA256[:8]), expires: expires}
	}
	for _, name := range d.Certificates {
		c.p.certificates = append(c.p.certificates, pattern{name, t})
	}
	for _, name := range d.Subjects {
		c.p.subjects = append(c.p.subjects, pattern{name, t})
	}
}

// checkTenantName refuses what a tenant cannot be called.
func checkTenantName(name string) error {
	switch {
	case name == "" || name == AnonymousName:
		return fmt.Errorf("a tenant cannot be called %q", name)
	case len(name) > maxTenantName:
		return fmt.Errorf("the name of a tenant has %d bytes, and may have %d", len(name), maxTenantName)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("the name of a tenant has characters that cannot be printed: %q", name)
	}
	return nil
}

// maxTenantName bounds the name of a tenant, and maxIssuer that of an issuer, in bytes.
// Both together are a key of the control plane's store.
const (
	maxTenantName = 128
	maxIssuer     = 200
)

// issuers says whose tokens may be a tenant's. Where more than one issuer could name the
// tenant, the policy must say which: one issuer must not give out another's names.
func (c *compiler) issuers(t *Tenant, d *tenantDocument, at []any) {
	t.issuers = d.Issuers
	for i, name := range d.Issuers {
		if !slices.ContainsFunc(c.d.Tokens, func(o issuerDocument) bool { return o.Issuer == name }) {
			known := make(map[string]bool)
			for _, o := range c.d.Tokens {
				known[o.Issuer] = true
			}
			c.report(append(at, "issuers", i), nearest(c.reader, name, known), "there is no issuer %q", name)
		}
	}
	claims, subjects := 0, 0
	for i := range c.d.Tokens {
		if c.d.Tokens[i].TenantClaim != "" {
			claims++
		} else if len(d.Subjects) > 0 {
			subjects++
		}
	}
	if d.Issuers == nil && max(claims, subjects) > 1 {
		c.report(at, "write  issuers: [ISSUER], or  issuers: []  for none", "several issuers could name the tenant %q", t.Name)
	}
}

func (c *compiler) compileIssuers() {
	for i, d := range c.d.Tokens {
		at := []any{"tokens", i}
		if d.Issuer == "" || d.JWKS == "" {
			c.report(at, "give  issuer  and  jwks", "the issuer is not complete")
		}
		if strings.ContainsFunc(d.Issuer, notOfAnIssuer) || len(d.Issuer) > maxIssuer {
			c.report(append(at, "issuer"), "give the tokens' claim iss, such as https://id.example.com", "an issuer cannot be called %q", d.Issuer)
		}
		if slices.ContainsFunc(c.p.Issuers, func(o Issuer) bool { return o.Name == d.Issuer }) {
			c.report(at, "merge the two", "the issuer %q is there twice", d.Issuer)
		}
		if d.Tier != "" {
			c.tier(d.Tier, append(at, "tier")...)
			if d.TenantClaim == "" {
				c.report(append(at, "tier"), "add  tenant_claim: CLAIM", "a tier needs the claim that names its tenants")
			}
		}
		c.p.Issuers = append(c.p.Issuers, Issuer{Name: d.Issuer, Audience: d.Audience, JWKS: d.JWKS, tenantClaim: d.TenantClaim, tier: d.Tier})
	}
}

// notOfAnIssuer reports the characters that the name of an issuer cannot have: @ ends the
// name of a tenant before it.
func notOfAnIssuer(r rune) bool { return r == '@' || unicode.IsSpace(r) || !unicode.IsPrint(r) }

// condition compiles what a class or a route matches.
func (c *compiler) condition(env *cel.Env, m *match, kind string, at []any) condition {
	c.filled(m.Tiers, append(at, "tiers"), "name tiers, or leave the field out for any")
	c.filled(m.Tenants, append(at, "tenants"), "name tenants, or leave the field out for any")
	for i, name := range m.Tiers {
		if _, ok := c.d.Tiers[name]; !ok && !strings.Contains(name, "*") {
			c.report(append(at, "tiers", i), nearest(c.reader, name, c.d.Tiers), "there is no tier %q", name)
		}
	}
	for i, name := range m.Tenants {
		if _, ok := c.d.Tenants[name]; !ok && name != AnonymousName && !strings.Contains(name, "*") && len(c.d.Tokens) == 0 {
			c.report(append(at, "tenants", i), nearest(c.reader, name, c.d.Tenants), "there is no tenant %q", name)
		}
	}
	is := condition{models: c.models(m.Models, at), tenants: m.Tenants, tiers: m.Tiers}
	if m.When != "" {
		var err error
		if is.when, err = c.programs.get(env, m.When, cel.BoolType, kind); err != nil {
			c.report(append(at, "when"), "", "the condition cannot be compiled: %v", err)
		}
	}
	return is
}

func (c *compiler) compileClasses() {
	names := make(map[string]bool)
	for i := range c.d.Classes {
		d, at := &c.d.Classes[i], []any{"classes", i}
		if d.Name == "" || names[d.Name] {
			c.report(at, "give each class a name of its own", "a class has no name, or one that another has: %q", d.Name)
		}
		names[d.Name] = true
		made := class{Class: Class{Name: d.Name, Deadline: time.Duration(d.Deadline)}, condition: c.condition(c.expressions.whole, &d.match, "classes", at), band: d.Band != ""}
		made.Band = c.band(d.Band, append(at, "band")...)
		c.p.classes = append(c.p.classes, made)
	}
}

func (c *compiler) compileRoutes() {
	for i := range c.d.Routes {
		d, at := &c.d.Routes[i], []any{"routes", i}
		made := route{condition: c.condition(c.expressions.routing, &d.match, "routes", at), salt: d.salt()}
		if d.Name != "" && slices.ContainsFunc(c.d.Routes[:i], func(o routeDocument) bool { return o.Name == d.Name }) {
			c.report(append(at, "name"), "give each route a name of its own", "another route is called %q, too", d.Name)
		}
		for j := range d.To {
			aim := c.target(d, &d.To[j], append(at, "to", j))
			if made.weight += aim.weight; aim.weight > 0 {
				made.to = append(made.to, aim)
			}
		}
		if len(made.to) == 0 {
			c.report(append(at, "to"), "write  to: [{version: N}], with a weight above 0", "the route goes nowhere")
		}
		if d.Sticky != "" {
			var err error
			if made.sticky, err = c.programs.get(c.expressions.routing, d.Sticky, cel.StringType, "sticky"); err != nil {
				c.report(append(at, "sticky"), `such as  headers["x-user"]`, "the expression cannot be compiled: %v", err)
			}
		}
		c.p.routes = append(c.p.routes, made)
	}
}

// salt makes the targets of a sticky route's users differ from those of other routes. It
// stays where other routes come or go, and where the weights and targets change, so that
// as few users as can be move.
func (d *routeDocument) salt() string {
	if d.Name != "" {
		return "name " + d.Name
	}
	return fmt.Sprintf("%q %q %q %q %q", d.Models, d.Tenants, d.Tiers, d.When, d.Sticky)
}

// target compiles one of the targets of a route.
func (c *compiler) target(d *routeDocument, to *targetDocument, at []any) target {
	c.checkTarget(d, to, at)
	aim := target{Target: Target{Model: to.Model}, label: to.Label, weight: 1}
	if to.Version > 0 {
		aim.Version = strconv.FormatInt(to.Version, 10)
	}
	if to.Weight != nil {
		if aim.weight = *to.Weight; !(aim.weight >= 0 && aim.weight < most) {
			c.report(append(at, "weight"), "give a number from 0 on", "%v is not allowed here", aim.weight)
		}
	}
	return aim
}

// checkTarget checks where a target goes.
func (c *compiler) checkTarget(d *routeDocument, to *targetDocument, at []any) {
	switch {
	case to.Model == "" && to.Version == 0 && to.Label == "":
		c.report(at, "write  version: N,  label: NAME  or  model: NAME", "the target names nothing")
	case to.Version != 0 && to.Label != "":
		c.report(at, "keep one of the two", "the target has a version and a label")
	case to.Version < 0:
		c.report(append(at, "version"), "versions are positive numbers", "there is no version %d", to.Version)
	case to.Label != "":
		models := d.Models
		if to.Model != "" {
			models = []string{to.Model}
		}
		if len(models) == 0 {
			c.report(append(at, "label"), "add  models: [NAME]", "a label needs the models whose it is")
		}
		for _, m := range models {
			if _, ok := c.d.Labels[m][to.Label]; !ok {
				c.report(append(at, "label"), nearest(c.reader, to.Label, c.d.Labels[m]), "model %q has no label %q", m, to.Label)
			}
		}
	}
}
