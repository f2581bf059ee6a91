package policy

import (
	"cmp"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
)

// test runs the tests of the file. One that fails is a finding.
func (r *reader) test(p *Policy, tests []testDocument) {
	for i := range tests {
		t, at := &tests[i], []any{"tests", i}
		p.Tests = append(p.Tests, t.Name)
		tenant, err := r.tenant(p, t.Request.Tenant)
		if err != nil {
			r.report(append(at, "request"), "", "test %q: %s", t.Name, errs.From(err).Msg)
			continue
		}
		got := p.Explain(tenant, cmp.Or(t.Request.API, "inference"), t.request())
		want := &t.Expect
		r.expected(t, at, "refused", want.Refused, string(got.Refused))
		if want.Refused != "" || got.Refused != "" {
			continue
		}
		r.expected(t, at, "class", want.Class, got.Class.Name)
		r.expected(t, at, "band", want.Band, p.Bands[got.Class.Band].Name)
		r.expected(t, at, "model", want.Model, got.Target.Model)
		r.expected(t, at, "version", want.Version, got.Target.Version)
		if want.Deadline > 0 && time.Duration(want.Deadline) != got.Class.Deadline {
			r.failed(t, at, "deadline", time.Duration(want.Deadline).String(), got.Class.Deadline.String())
		}
	}
}

// tenant is the tenant of a test.
func (r *reader) tenant(p *Policy, name string) (*Tenant, error) {
	if name == "" || name == AnonymousName {
		return p.Anonymous()
	}
	if t := p.tenants[name]; t != nil {
		return t, nil
	}
	return nil, errs.New(errs.TokenInvalid, "there is no tenant %q; %s", name, nearest(r, name, p.tenants))
}

// expected compares what a test names with what is so; a reason is compared also
// where the test expects none.
func (r *reader) expected(t *testDocument, at []any, what, want, got string) {
	if want != got && (want != "" || what == "refused") {
		r.failed(t, at, what, want, got)
	}
}

func (r *reader) failed(t *testDocument, at []any, what, want, got string) {
	r.report(append(at, "expect", what), "correct the rules or the test", "test %q fails: %s is %q, expected %q", t.Name, what, got, want)
}

func (t *testDocument) request() *Request {
	r := &Request{Model: t.Request.Model, Version: t.Request.Version, Bytes: int64(t.Request.Bytes), Priority: t.Request.Priority, BatchSize: 1}
	r.Header = func(name string) []string {
		if v, ok := t.Request.Headers[name]; ok {
			return []string{v}
		}
		return nil
	}
	for _, name := range sorted(t.Request.Inputs) {
		n := int64(1)
		for _, d := range t.Request.Inputs[name] {
			n *= d
		}
		r.Elements += n
		if shape := t.Request.Inputs[name]; len(shape) > 0 {
			r.BatchSize = shape[0]
		}
	}
	r.Inputs = func(each func(string, []int64)) {
		for _, name := range sorted(t.Request.Inputs) {
			each(name, t.Request.Inputs[name])
		}
	}
	return r
}

// Explanation is the result of a policy for a request.
type Explanation struct {
	// Refused is why the tenant may not send it; empty if it may.
	Refused errs.Reason
	Err     error
	Target  Target
	Class   Class
}

// Explain returns how the policy treats a tenant's request, apart from quotas.
func (p *Policy) Explain(t *Tenant, api string, r *Request) Explanation {
	err := t.MayCall(api)
	if err == nil && r.Model != "" {
		err = t.MayUse(r.Model)
	}
	if err != nil {
		return Explanation{Refused: errs.Of(err), Err: err}
	}
	return Explanation{Target: p.Route(t, r, 0), Class: p.Classify(t, r)}
}
