package path_test

import (
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/policy"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/tenants"
)

// BenchmarkPolicy is a call without a policy, and under one with a key, a class and a
// route that have conditions, and limits.
func BenchmarkPolicy(b *testing.B) {
	text := `
version: 1
bands: [{name: high}, {name: low, minimum: 5%}]
tiers: {gold: {weight: 8, band: high, limits: {requests_per_second: 1e9, cost_units_per_second: 1e9}}}
tenants: {acme: {tier: gold, keys: [{sha256: ` + policy.Key("acme-key") + `}]}}
classes: [{name: big, when: elements > 100000, band: low}]
routes: [{models: [other], to: [{version: 2}]}, {when: "headers['x-canary'] == '1'", to: [{model: tokens}]}]
`
	p, findings := policy.Read([]byte(text))
	if p == nil {
		b.Fatal(findings)
	}
	for name, policed := range map[string]bool{"none": false, "policy": true} {
		b.Run(name, func(b *testing.B) {
			all := tenants.New(new(counts), time.Now)
			if policed {
				all.Set(p, nil)
			}
			r := newRig(b, path.Options{Tenants: all, Costs: new(tenants.Costs)})
			r.header = map[string]string{"x-api-key": "acme-key"}
			b.ReportAllocs()
			for b.Loop() {
				r.sent = r.sent[:0]
				if err := r.infer(b, "m"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
