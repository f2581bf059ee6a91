package cache_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/cache"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func input(name string, data ...byte) infer.Tensor {
	return infer.Tensor{Name: name, Datatype: tensor.Uint8, Shape: tensor.Shape{int64(len(data))}, Data: tensor.InHeap(data)}
}

func request() *infer.Request {
	return &infer.Request{
		Model: infer.ModelRef{Name: "m", Version: 1, Generation: 1}, Pool: "p", Inputs: []infer.Tensor{input("a", 1, 2), input("b", 3)},
		Outputs: []infer.Output{{Name: "x"}, {Name: "y"}}, Parameters: []infer.Parameter{{Key: "k", Value: int64(1)}, {Key: "l", Value: "1"}},
	}
}

// content has the generation of a request's model.
func content(r *infer.Request) string { return fmt.Sprint("content ", r.Model.Generation) }

func kept(r *infer.Request) cache.Model { return cache.Model{Content: content(r), Kept: true} }

func key(t *testing.T, r *infer.Request) cache.Key {
	t.Helper()
	k, ok := cache.KeyOf(content(r), r)
	if !ok {
		t.Fatal("the request has no key")
	}
	return k
}

func TestKeysDifferByAllThatAResponseDependsOn(t *testing.T) {
	seen := map[cache.Key]string{key(t, request()): "the request"}
	for name, change := range map[string]func(*infer.Request){
		"tenant":                   func(r *infer.Request) { r.Tenant = "t" },
		"namespace":                func(r *infer.Request) { r.Model.Namespace = "n" },
		"model":                    func(r *infer.Request) { r.Model.Name = "n" },
		"version":                  func(r *infer.Request) { r.Model.Version = 2 },
		"content":                  func(r *infer.Request) { r.Model.Generation = 2 },
		"an input's name":          func(r *infer.Request) { r.Inputs[1].Name = "c" },
		"an input's bytes":         func(r *infer.Request) { r.Inputs[1] = input("b", 4) },
		"bytes in another input":   func(r *infer.Request) { r.Inputs = []infer.Tensor{input("a", 1), input("b", 2, 3)} },
		"an input's shape":         func(r *infer.Request) { r.Inputs[0].Shape = tensor.Shape{2, 1} },
		"an input's datatype":      func(r *infer.Request) { r.Inputs[0].Datatype = tensor.Int8 },
		"an input less":            func(r *infer.Request) { r.Inputs = r.Inputs[:1] },
		"an output less":           func(r *infer.Request) { r.Outputs = r.Outputs[:1] },
		"all outputs":              func(r *infer.Request) { r.Outputs = nil },
		"the order of outputs":     func(r *infer.Request) { r.Outputs = []infer.Output{{Name: "y"}, {Name: "x"}} },
		"a parameter":              func(r *infer.Request) { r.Parameters[0].Value = int64(2) },
		"a parameter's type":       func(r *infer.Request) { r.Parameters[0].Value = true },
		"a parameter of text":      func(r *infer.Request) { r.Parameters[0].Value = "1" },
		"a parameter of a decimal": func(r *infer.Request) { r.Parameters[0].Value = 1.0 },
		"a parameter less":         func(r *infer.Request) { r.Parameters = nil },
	} {
		r := request()
		change(r)
		k := key(t, r)
		if other := seen[k]; other != "" {
			t.Errorf("%s has the key of %s", name, other)
		}
		seen[k] = name
	}
}

func TestKeysAreEqualForEqualRequests(t *testing.T) {
	r := request()
	r.ID, r.Priority, r.Timeout, r.Deadline, r.Trace = "id", 3, 4, 5, "trace"
	r.Inputs[0], r.Inputs[1] = r.Inputs[1], r.Inputs[0]
	r.Parameters[0], r.Parameters[1] = r.Parameters[1], r.Parameters[0]
	if key(t, r) != key(t, request()) {
		t.Error("an equal request has another key")
	}
}

func TestRequestsThatCannotBeKnownHaveNoKey(t *testing.T) {
	step, remote := request(), request()
	step.Sequence.ID = 1
	remote.Inputs[0].Data = tensor.Ref{Place: tensor.Remote, Length: 2}
	for _, r := range []*infer.Request{step, remote} {
		if _, ok := cache.KeyOf(content(r), r); ok {
			t.Errorf("%+v has a key", r)
		}
	}
	if _, ok := cache.KeyOf("", request()); ok {
		t.Error("a request for an unknown content has a key")
	}
}

// serve answers a request by the cache or the model, and returns the output.
func serve(t interface{ Errorf(string, ...any) }, c *cache.Cache, r *infer.Request, model func() []byte) (data []byte, hit bool) {
	l, known := c.Look(kept(r), r)
	defer l.Close()
	if known == nil {
		p := &infer.Response{Final: true, Outputs: []infer.Tensor{input("y", model()...)}}
		defer p.Release()
		l.Keep(p)
		b, _ := p.Outputs[0].Data.Bytes()
		return bytes.Clone(b), false
	}
	defer known.Release()
	b, err := known.Outputs[0].Data.Bytes()
	if err != nil || !known.Final {
		t.Errorf("a hit is %+v, %v", known, err)
	}
	return bytes.Clone(b), true
}

func TestAnswersAreThoseOfTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := cache.New(cache.NewLocal(rapid.Int64Range(1, 8000).Draw(t, "size")), func(string, infer.CacheUse) {})
		generation := uint64(1)
		for range rapid.IntRange(1, 60).Draw(t, "requests") {
			if rapid.IntRange(0, 9).Draw(t, "reload") == 0 {
				generation++
			}
			r := &infer.Request{Model: infer.ModelRef{Name: "m", Generation: generation}}
			r.Inputs = []infer.Tensor{input("a", rapid.SliceOfN(rapid.ByteRange(0, 1), 0, 3).Draw(t, "input")...)}
			in, _ := r.Inputs[0].Data.Bytes()
			model := func() []byte { return append([]byte{byte(generation)}, in...) }
			if got, _ := serve(t, c, r, model); !bytes.Equal(got, model()) {
				t.Fatalf("got %v, want %v", got, model())
			}
		}
	})
}

// A response that is kept after a reload is that of the content which gave it.
func TestReloadsWhileResponsesAreKept(t *testing.T) {
	c := cache.New(cache.NewLocal(1<<20), func(string, infer.CacheUse) {})
	var working sync.WaitGroup
	for worker := range 4 {
		working.Go(func() {
			for generation := range uint64(200) {
				r := &infer.Request{Model: infer.ModelRef{Name: "m", Generation: (generation + uint64(worker)) % 200}}
				want := fmt.Appendf(nil, "%d", r.Model.Generation)
				if got, _ := serve(t, c, r, func() []byte { return want }); !bytes.Equal(got, want) {
					t.Errorf("got %s of generation %s", got, want)
				}
			}
		})
	}
	working.Wait()
}

func TestHitsDoNotShareTheWorkersMemory(t *testing.T) {
	c := cache.New(cache.NewLocal(1<<20), func(string, infer.CacheUse) {})
	released := false
	data := []byte{1, 2, 3}
	p := &infer.Response{Final: true, Parameters: []infer.Parameter{{Key: "k", Value: "v"}}, Outputs: []infer.Tensor{{
		Name: "y", Datatype: tensor.Uint8, Shape: tensor.Shape{3}, Data: tensor.InBuffer(tensor.Wrap(data, false, func(*tensor.Buffer) { released = true }), 0, 3),
	}}}
	l, _ := c.Look(kept(request()), request())
	l.Keep(p)
	p.Release()
	clear(data)
	if !released {
		t.Error("the cache holds the model's memory")
	}
	_, hit := c.Look(kept(request()), request())
	if hit == nil {
		t.Fatal("not known")
	}
	defer hit.Release()
	got, _ := hit.Outputs[0].Data.Bytes()
	if !bytes.Equal(got, []byte{1, 2, 3}) || hit.Outputs[0].Name != "y" || hit.Parameters[0].Value != "v" || hit.Outputs[0].Shape[0] != 3 {
		t.Errorf("a hit is %+v with %v", hit, got)
	}
}

func TestTheSizeBoundsWhatIsKept(t *testing.T) {
	for _, size := range []int{100, 4000, 1 << 20} {
		c := cache.New(cache.NewLocal(10_000), func(string, infer.CacheUse) {})
		for range 2 { // the second time some are known
			for i := range 50 {
				r := request()
				r.Inputs[0] = input("a", byte(i))
				serve(t, c, r, func() []byte { return make([]byte, size) })
			}
		}
		held := 0
		for i := range 50 {
			r := request()
			r.Inputs[0] = input("a", byte(i))
			l, hit := c.Look(kept(r), r)
			l.Close()
			if hit != nil {
				held += size
				hit.Release()
			}
		}
		if held > 10_000 || size < 10_000 && held == 0 {
			t.Errorf("%d bytes of outputs of %d are kept in 10000", held, size)
		}
	}
}

func TestEachLookupIsCountedOnce(t *testing.T) {
	type count struct {
		pool string
		hit  bool
	}
	var counts []count
	c := cache.New(cache.NewLocal(1<<20), func(pool string, u infer.CacheUse) { counts = append(counts, count{pool, u.Hit}) })
	failed, _ := c.Look(kept(request()), request())
	failed.Close()
	failed.Close()
	failed.Keep(&infer.Response{Final: true}) // too late
	serve(t, c, request(), func() []byte { return []byte{1} })
	serve(t, c, request(), func() []byte { t.Error("executed"); return nil })
	step := request()
	step.Sequence.Start, step.Sequence.ID = true, 7
	l, hit := c.Look(kept(step), step)
	l.Close()
	if diff := cmp.Diff([]count{{"p", false}, {"p", false}, {"p", true}}, counts, cmp.AllowUnexported(count{})); diff != "" || hit != nil {
		t.Errorf("hit %v, counts (-want +got):\n%s", hit, diff)
	}
}

func TestWithoutACacheNothingIsKnown(t *testing.T) {
	var c *cache.Cache
	for range 2 {
		if _, hit := serve(t, c, request(), func() []byte { return nil }); hit {
			t.Error("a hit of no cache")
		}
	}
}

func BenchmarkHit(b *testing.B) {
	for _, size := range []int{1 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			c := cache.New(cache.NewLocal(1<<30), func(string, infer.CacheUse) {})
			r := request()
			r.Inputs[0] = input("a", make([]byte, size)...)
			l, _ := c.Look(kept(r), r)
			l.Keep(&infer.Response{Final: true, Outputs: []infer.Tensor{input("y", make([]byte, size)...)}})
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				_, hit := c.Look(kept(r), r)
				hit.Release()
			}
		})
	}
}
