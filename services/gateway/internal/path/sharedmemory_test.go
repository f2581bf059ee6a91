package path_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/cache"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/regions"
	"github.com/nereid-serving/nereid/services/gateway/internal/tenants"
)

// files are regions of a directory with the file f of 16 bytes.
func files(t *testing.T) (m *regions.Regions, file string) {
	t.Helper()
	dir := t.TempDir()
	file = filepath.Join(dir, "f")
	if err := os.WriteFile(file, []byte("abcdefghijklmnop"), 0o600); err != nil {
		t.Fatal(err)
	}
	m = regions.New(regions.Options{Directory: dir})
	t.Cleanup(m.Close)
	return m, file
}

func register(t *testing.T, m *regions.Regions, owner regions.Owner, name string) {
	t.Helper()
	if err := m.Register(owner, regions.Region{Name: name, Key: "/f", Size: 16}); err != nil {
		t.Fatal(err)
	}
}

// inRegion has the request's input, and where to is not empty its output, in a region.
func inRegion(region, to string) func(*path.Call) error {
	return func(c *path.Call) error {
		c.Request.Inputs[0].Data.Release()
		c.Shared.Inputs = []regions.Input{{Index: 0, Range: regions.Range{Region: region, Offset: 4, Size: 4}}}
		if to != "" {
			c.Shared.Outputs = []regions.Output{{Name: "Y", Range: regions.Range{Region: to, Offset: 12, Size: 4}}}
		}
		return nil
	}
}

// written returns a response whose output has the text.
func (r *rig) written(text string, final bool) *infer.Response {
	p := r.response(final)
	data, _ := p.Outputs[0].Data.Bytes()
	copy(data, text)
	return p
}

func content(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestTenantsUseTheirOwnRegions(t *testing.T) {
	m, file := files(t)
	r := newRig(t, path.Options{Tenants: tenantsOf(t, "tiers: {greedy: {}, modest: {}}\n", new(counts)), Costs: new(tenants.Costs), Regions: m})
	register(t, m, regions.Owner{Tenant: true, Name: "greedy"}, "secret")
	for key, want := range map[string]string{"greedy": "", "modest": "Unable to find shared memory region: 'secret'"} {
		for _, decode := range []func(*path.Call) error{inRegion("secret", ""), inRegion("secret", "secret"), func(c *path.Call) error {
			err := inRegion("secret", "secret")(c)
			c.Request.Inputs[0].Data, c.Shared.Inputs = r.tensor4("X").Data, nil // the output alone
			return err
		}} {
			before := content(t, file)
			r.decode = decode
			switch err := r.as(t, key, "m"); {
			case want == "" && err != nil, want != "" && (err == nil || errs.From(err).Msg != want):
				t.Errorf("%s: %v, want %q", key, err, want)
			case want != "" && content(t, file) != before:
				t.Errorf("%s has written the file", key)
			}
		}
	}
}

func TestEachResponseOfADecoupledModelIsWritten(t *testing.T) {
	m, file := files(t)
	r := newRig(t, path.Options{Regions: m})
	register(t, m, regions.Owner{}, "r")
	r.decode = inRegion("r", "r")
	r.submit = func(q *infer.Request) error {
		r.respond(q, r.written("1111", false), r.written("2222", false), r.written("3333", true))
		return nil
	}
	var seen []string
	r.send = func(p *infer.Response) error {
		out := &p.Outputs[0]
		if out.Name != "Y" || out.Datatype != tensor.Uint8 || len(out.Shape) != 1 || out.Data.Length != 0 {
			t.Errorf("the response has %+v", out)
		}
		seen = append(seen, content(t, file)[12:])
		if p.Final { // a client that has its last response finds its regions free
			_ = m.Unregister(regions.Owner{}, regions.System, "r")
			if n, _ := m.Registered(); n != 0 {
				t.Error("the region is in use while the last response is sent")
			}
		}
		return nil
	}
	if err := r.infer(t, "tokens"); err != nil || strings.Join(seen, " ") != "1111 2222 3333" {
		t.Errorf("%q, %v", seen, err)
	}
}

// A response that is known goes to the region of the request that it answers, and what is
// kept of it is not the client's to change.
func TestKnownResponsesAreWritten(t *testing.T) {
	m, file := files(t)
	r := newRig(t, path.Options{Regions: m, Cache: cache.New(cache.NewLocal(1<<20), func(string, infer.CacheUse) {})})
	register(t, m, regions.Owner{}, "r")
	executed := 0
	r.submit = func(q *infer.Request) error {
		executed++
		r.respond(q, r.written("1111", true))
		return nil
	}
	for range 3 {
		r.decode = inRegion("r", "r")
		if err := r.infer(t, "cached"); err != nil || content(t, file) != "abcdefghijkl1111" {
			t.Errorf("%q, %v", content(t, file), err)
		}
		if err := os.WriteFile(file, []byte("abcdefghijklmnop"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.decode = inRegion("r", "")
	r.send = func(p *infer.Response) error {
		if data, err := p.Outputs[0].Data.Bytes(); err != nil || string(data) != "1111" {
			t.Errorf("%q, %v", data, err)
		}
		return nil
	}
	if err := r.infer(t, "cached"); err != nil || executed != 1 {
		t.Errorf("%d executions, %v", executed, err)
	}
}

// What a client writes after its request was read changes nothing.
func TestInputsAreCopied(t *testing.T) {
	m, file := files(t)
	r := newRig(t, path.Options{Regions: m})
	register(t, m, regions.Owner{}, "r")
	r.decode = inRegion("r", "")
	r.submit = func(q *infer.Request) error {
		if err := os.WriteFile(file, []byte("????????????????"), 0o600); err != nil {
			t.Fatal(err)
		}
		if data, err := q.Inputs[0].Data.Bytes(); err != nil || string(data) != "efgh" {
			t.Errorf("%q, %v", data, err)
		}
		r.respond(q, r.response(true))
		return nil
	}
	if err := r.infer(t, "m"); err != nil {
		t.Error(err)
	}
}

func TestRegionsAreFreeAfterEveryEnd(t *testing.T) {
	m, file := files(t)
	budget := memory.NewBudget(100)
	r := newRig(t, path.Options{Regions: m, Budget: budget})
	for name, c := range map[string]struct {
		then   func()
		reason errs.Reason
	}{
		"a response":          {func() {}, ""},
		"a failure":           {func() { r.submit = func(*infer.Request) error { return errs.New(errs.QueueFull, "") } }, errs.QueueFull},
		"a client that goes":  {func() { r.send = func(*infer.Response) error { return errs.New(errs.Canceled, "") } }, errs.Canceled},
		"a panic":             {func() { r.send = func(*infer.Response) error { panic("bug") } }, errs.Bug},
		"an unknown output":   {func() { r.decode = inRegion("r", "none") }, errs.RegionNotFound},
		"a file that shrinks": {func() { _ = os.Truncate(file, 7) }, errs.RegionChanged},
		"no memory":           {func() { budget.SetLimit(7) }, errs.MemoryFull},
	} {
		t.Run(name, func(t *testing.T) {
			budget.SetLimit(100)
			if err := os.WriteFile(file, []byte("abcdefghijklmnop"), 0o600); err != nil {
				t.Fatal(err)
			}
			register(t, m, regions.Owner{}, "r")
			r.decode, r.send = inRegion("r", "r"), nil
			r.submit = func(q *infer.Request) error {
				r.respond(q, r.response(true))
				return nil
			}
			c.then()
			if err := r.infer(t, "m"); errs.Of(err) != c.reason {
				t.Errorf("%v, want %q", err, c.reason)
			}
			if err := m.Unregister(regions.Owner{}, regions.System, ""); err != nil {
				t.Error(err)
			}
			if n, _ := m.Registered(); n != 0 {
				t.Error("the region is still in use")
			}
		})
	}
}
