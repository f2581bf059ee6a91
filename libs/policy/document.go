package policy

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// document is a policy as people write it.
type document struct {
	Version   int                         `yaml:"version" jsonschema:"required,enum=1" jsonschema_description:"Version of the format: 1."`
	Shadow    bool                        `yaml:"shadow,omitempty" jsonschema_description:"Count what would be refused, and refuse nothing."`
	Bands     []bandDocument              `yaml:"bands,omitempty" jsonschema_description:"Priority bands, the highest first. Requests of a band go before those of the bands below it."`
	Tiers     map[string]tierDocument     `yaml:"tiers,omitempty" jsonschema_description:"What tenants have in common, by name."`
	Tenants   map[string]tenantDocument   `yaml:"tenants,omitempty" jsonschema_description:"The tenants, by name."`
	Anonymous *anonymousDocument          `yaml:"anonymous,omitempty" jsonschema_description:"What callers without credentials are; without it they are refused."`
	Tokens    []issuerDocument            `yaml:"tokens,omitempty" jsonschema_description:"Issuers of the JSON web tokens that are taken."`
	Labels    map[string]map[string]int64 `yaml:"labels,omitempty" jsonschema_description:"Names of versions, by model: clients may ask for a label as they ask for a version."`
	Classes   []classDocument             `yaml:"classes,omitempty" jsonschema_description:"Cost classes. A request is of the first one that it matches."`
	Routes    []routeDocument             `yaml:"routes,omitempty" jsonschema_description:"Where requests go. A request takes the first route that it matches."`
	Retries   *retriesDocument            `yaml:"retries,omitempty" jsonschema_description:"How many retries are taken."`
	Tests     []testDocument              `yaml:"tests,omitempty" jsonschema_description:"Requests, and what the policy must say of them before it is used."`
}

type bandDocument struct {
	Name    string `yaml:"name" jsonschema:"required" jsonschema_description:"Name of the band."`
	Minimum Share  `yaml:"minimum,omitempty" jsonschema_description:"The share of the device time that the band gets when it has requests, whatever waits above it, such as 5%."`
}

type limitsDocument struct {
	RequestsPerSecond  *float64 `yaml:"requests_per_second,omitempty" jsonschema:"exclusiveMinimum=0" jsonschema_description:"Requests a second, on average."`
	CostUnitsPerSecond *float64 `yaml:"cost_units_per_second,omitempty" jsonschema:"exclusiveMinimum=0" jsonschema_description:"Cost units a second, on average: milliseconds of device time."`
	BytesPerSecond     *Size    `yaml:"bytes_per_second,omitempty" jsonschema_description:"Bytes of requests' tensors a second, on average, such as 64MiB."`
	// Burst is for how long a tenant may use what it has not used before.
	Burst       Duration `yaml:"burst,omitempty" jsonschema_description:"How long a tenant may save up what it does not use, to use it at once; 1s by default."`
	Concurrency *int     `yaml:"concurrency,omitempty" jsonschema:"minimum=1" jsonschema_description:"Requests in flight at a time, at each gateway."`
	Memory      *Size    `yaml:"memory,omitempty" jsonschema_description:"Bytes that the requests in flight and their responses may hold at a time, at each gateway, such as 256MiB; three quarters of --max-request-bytes by default."`
}

type budgetDocument struct {
	Requests  *float64 `yaml:"requests,omitempty" jsonschema:"exclusiveMinimum=0" jsonschema_description:"Requests in each window."`
	CostUnits *float64 `yaml:"cost_units,omitempty" jsonschema:"exclusiveMinimum=0" jsonschema_description:"Cost units in each window."`
	Per       Duration `yaml:"per" jsonschema:"required" jsonschema_description:"Length of the window, such as 24h. Windows begin at multiples of it since 1970, in UTC."`
}

type tierDocument struct {
	Weight    *float64         `yaml:"weight,omitempty" jsonschema:"exclusiveMinimum=0" jsonschema_description:"Share of a tenant of the tier beside other tenants of its band; 1 by default."`
	Band      string           `yaml:"band,omitempty" jsonschema_description:"Band of requests whose class names none; by default the lowest."`
	Deadline  Duration         `yaml:"deadline,omitempty" jsonschema_description:"Deadline of requests that state none, since their arrival, such as 500ms."`
	Limits    limitsDocument   `yaml:"limits,omitempty" jsonschema_description:"What each tenant of the tier may use."`
	Budgets   []budgetDocument `yaml:"budgets,omitempty" jsonschema_description:"What each tenant of the tier may use in a window of time."`
	Models    []string         `yaml:"models,omitempty" jsonschema_description:"Models that tenants of the tier may use, as patterns such as text_*; all by default."`
	APIs      []string         `yaml:"apis,omitempty" jsonschema_description:"APIs that tenants of the tier may use; by default all but model-repository, shared-memory, trace, logging and recording."`
	Recording string           `yaml:"recording,omitempty" jsonschema_description:"What recordings have of the requests of the tier's tenants: nothing, shapes without contents (the default), or contents."`
}

type tenantDocument struct {
	Tier         string        `yaml:"tier,omitempty" jsonschema_description:"The tenant's tier."`
	Keys         []keyDocument `yaml:"keys,omitempty" jsonschema_description:"API keys. Make one with: nereid policy key"`
	Certificates []string      `yaml:"certificates,omitempty" jsonschema_description:"Names in clients' certificates, as patterns: the common name, DNS names and URIs."`
	Subjects     []string      `yaml:"subjects,omitempty" jsonschema_description:"Subjects of JSON web tokens that are this tenant's, as patterns, for issuers without tenant_claim."`
	Issuers      []string      `yaml:"issuers,omitempty" jsonschema_description:"Issuers whose tokens may be this tenant's; needed where more than one issuer could name it. An empty list is none."`
	Models       []string      `yaml:"models,omitempty" jsonschema_description:"Models that the tenant may use, as patterns, in the place of its tier's."`
	APIs         []string      `yaml:"apis,omitempty" jsonschema_description:"APIs that the tenant may use, in the place of its tier's."`
}

type keyDocument struct {
	Name    string `yaml:"name,omitempty" jsonschema_description:"What the key is called in logs."`
	SHA256  string `yaml:"sha256" jsonschema:"required,pattern=^[0-9a-f]{64}$" jsonschema_description:"SHA-256 of the key, in hexadecimal digits."`
	Expires Day    `yaml:"expires,omitempty" jsonschema_description:"The day from which on the key is refused, such as 2030-01-31, in UTC."`
}

type anonymousDocument struct {
	Tier string `yaml:"tier,omitempty" jsonschema_description:"The tier of callers without credentials."`
}

type issuerDocument struct {
	Issuer      string `yaml:"issuer" jsonschema:"required" jsonschema_description:"The tokens' claim iss."`
	Audience    string `yaml:"audience,omitempty" jsonschema_description:"What the tokens' claim aud must have."`
	JWKS        string `yaml:"jwks" jsonschema:"required" jsonschema_description:"URL or file of the issuer's keys, a JSON web key set."`
	TenantClaim string `yaml:"tenant_claim,omitempty" jsonschema_description:"The claim that names the tenant. Without it the claim sub is looked for in the tenants' subjects."`
	Tier        string `yaml:"tier,omitempty" jsonschema_description:"The tier of tenants that the issuer names and the policy does not list, which are called NAME@ISSUER; without it they are refused."`
}

type match struct {
	Models  []string `yaml:"models,omitempty" jsonschema_description:"Models, as patterns."`
	Tenants []string `yaml:"tenants,omitempty" jsonschema_description:"Tenants, as patterns."`
	Tiers   []string `yaml:"tiers,omitempty" jsonschema_description:"Tiers."`
	When    string   `yaml:"when,omitempty" jsonschema_description:"A condition in CEL, such as elements > 100000."`
}

type classDocument struct {
	Name     string `yaml:"name" jsonschema:"required" jsonschema_description:"Name of the class, in metrics and explanations."`
	match    `yaml:",inline"`
	Band     string   `yaml:"band,omitempty" jsonschema_description:"Band of the class's requests."`
	Deadline Duration `yaml:"deadline,omitempty" jsonschema_description:"Deadline of requests that state none, since their arrival."`
}

type routeDocument struct {
	Name   string `yaml:"name,omitempty" jsonschema_description:"Name of the route. Sticky users stay with their targets while the route has the same name or, without one, the same conditions."`
	match  `yaml:",inline"`
	To     []targetDocument `yaml:"to" jsonschema:"required" jsonschema_description:"Where the requests go: one target, or several by their weights."`
	Sticky string           `yaml:"sticky,omitempty" jsonschema_description:"An expression in CEL that gives a text, such as headers[\"x-user\"]: requests with the same text go to the same target."`
}

type targetDocument struct {
	Model   string   `yaml:"model,omitempty" jsonschema_description:"Another model, which may be in another pool."`
	Version int64    `yaml:"version,omitempty" jsonschema_description:"A version."`
	Label   string   `yaml:"label,omitempty" jsonschema_description:"A label of a version."`
	Weight  *float64 `yaml:"weight,omitempty" jsonschema:"minimum=0" jsonschema_description:"Share of the requests beside the other targets; 1 by default, 0 gets none."`
}

type retriesDocument struct {
	Budget Share `yaml:"budget" jsonschema:"required" jsonschema_description:"Retries that are taken, as a share of a tenant's other requests, such as 20%."`
}

type testDocument struct {
	Name    string         `yaml:"name" jsonschema:"required" jsonschema_description:"What the test shows."`
	Request testRequest    `yaml:"request" jsonschema:"required" jsonschema_description:"The request."`
	Expect  testExpectance `yaml:"expect" jsonschema:"required" jsonschema_description:"What the policy must say of it."`
}

type testRequest struct {
	Tenant   string             `yaml:"tenant,omitempty" jsonschema_description:"The tenant; none is a caller without credentials."`
	API      string             `yaml:"api,omitempty" jsonschema_description:"The API; inference by default."`
	Model    string             `yaml:"model,omitempty" jsonschema_description:"The model."`
	Version  string             `yaml:"version,omitempty" jsonschema_description:"The version or label that is asked for."`
	Headers  map[string]string  `yaml:"headers,omitempty" jsonschema_description:"Headers."`
	Inputs   map[string][]int64 `yaml:"inputs,omitempty" jsonschema_description:"Shapes of the inputs, by name."`
	Bytes    Size               `yaml:"bytes,omitempty" jsonschema_description:"Bytes of the inputs."`
	Priority uint64             `yaml:"priority,omitempty" jsonschema_description:"The request's priority."`
}

type testExpectance struct {
	Refused  string   `yaml:"refused,omitempty" jsonschema_description:"The reason of the refusal, such as tenant_forbidden."`
	Class    string   `yaml:"class,omitempty" jsonschema_description:"The cost class."`
	Band     string   `yaml:"band,omitempty" jsonschema_description:"The band."`
	Deadline Duration `yaml:"deadline,omitempty" jsonschema_description:"The deadline by default."`
	Model    string   `yaml:"model,omitempty" jsonschema_description:"The model that it goes to."`
	Version  string   `yaml:"version,omitempty" jsonschema_description:"The version that it goes to."`
}

// Duration is a time span, written as Go does: 250ms, 1h30m.
type Duration time.Duration

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if err != nil || v <= 0 {
		return fmt.Errorf("want a time span such as 250ms, 30s or 24h, got %q", n.Value)
	}
	*d = Duration(v)
	return nil
}

// Size is a number of bytes, with or without a unit: 1048576, 64MiB, 1.5GB.
type Size int64

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *Size) UnmarshalYAML(n *yaml.Node) error {
	units := []struct {
		name  string
		bytes float64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}}
	text, unit := strings.TrimSpace(n.Value), 1.0
	for _, u := range units {
		if number, ok := strings.CutSuffix(text, u.name); ok {
			text, unit = strings.TrimSpace(number), u.bytes
			break
		}
	}
	v, err := strconv.ParseFloat(text, 64)
	if v *= unit; err != nil || !(v >= 0 && v < math.MaxInt64/2) {
		return fmt.Errorf("want a number of bytes such as 65536 or 64MiB, got %q", n.Value)
	}
	*s = Size(v)
	return nil
}

// Share is a part of a whole, from 0 to 1, written as 5% or 0.05.
type Share float64

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *Share) UnmarshalYAML(n *yaml.Node) error {
	text, percent := strings.CutSuffix(strings.TrimSpace(n.Value), "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if percent {
		v /= 100
	}
	if err != nil || !(v >= 0 && v <= 1) {
		return fmt.Errorf("want a share such as 5%% or 0.05, got %q", n.Value)
	}
	*s = Share(v)
	return nil
}

// Day is the beginning of a day in UTC.
type Day time.Time

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *Day) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.Parse(time.DateOnly, n.Value)
	if err != nil {
		return fmt.Errorf("want a day such as 2030-01-31, got %q", n.Value)
	}
	*d = Day(v)
	return nil
}
