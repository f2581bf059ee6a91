package cache_test

import (
	"bytes"
	"context"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/cache"
)

// values are those of another process, in this one.
type values map[string][]byte

func (v values) Get(_ context.Context, name string, most int) []byte {
	if len(v[name]) > most {
		return nil
	}
	return bytes.Clone(v[name])
}

func (v values) Set(name string, value func() []byte) {
	if b := value(); b != nil {
		v[name] = b
	}
}

func ignored(string, infer.CacheUse) {}

// find looks for the response to a request, and keeps another if there is none.
func find(t *testing.T, c *cache.Cache, r *infer.Request, p *infer.Response) *infer.Response {
	t.Helper()
	l, hit := c.Look(kept(r), r)
	if hit != nil || !l.Pending() {
		t.Fatalf("hit %v, pending %t: want one that is to be found elsewhere", hit, l.Pending())
	}
	hit = l.Find(t.Context())
	if hit == nil && p != nil {
		l.Keep(p)
	}
	l.Close()
	return hit
}

func responses() *rapid.Generator[*infer.Response] {
	output := rapid.Custom(func(t *rapid.T) infer.Tensor {
		name, data := rapid.String().Draw(t, "name"), rapid.SliceOf(rapid.Byte()).Draw(t, "data")
		datatype := rapid.SampledFrom([]tensor.Datatype{tensor.Uint8, tensor.Bytes}).Draw(t, "datatype")
		return infer.Tensor{Name: name, Datatype: datatype, Shape: tensor.Shape{1, int64(len(data))}, Data: tensor.InHeap(data)}
	})
	parameter := rapid.Custom(func(t *rapid.T) infer.Parameter {
		value := rapid.OneOf(rapid.Bool().AsAny(), rapid.Int64().AsAny(), rapid.Float64().AsAny(), rapid.String().AsAny()).Draw(t, "value")
		return infer.Parameter{Key: rapid.String().Draw(t, "key"), Value: value}
	})
	return rapid.Custom(func(t *rapid.T) *infer.Response {
		return &infer.Response{Final: true, Outputs: rapid.SliceOf(output).Draw(t, "outputs"), Parameters: rapid.SliceOf(parameter).Draw(t, "parameters")}
	})
}

// shown is what a client sees of a response.
func shown(p *infer.Response) []any {
	list := []any{p.Final}
	for _, out := range p.Outputs {
		data, err := out.Data.Bytes()
		list = append(list, out.Name, out.Datatype, out.Shape.String(), string(data), err)
	}
	for _, q := range p.Parameters {
		list = append(list, q.Key, q.Value)
	}
	return list
}

func TestResponsesComeBackFromOtherProcesses(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		v, kept := values{}, responses().Draw(rt, "response")
		want := shown(kept)
		find(t, cache.New(cache.NewRemote(v), ignored), request(), kept)
		hit := find(t, cache.New(cache.NewRemote(v), ignored), request(), nil)
		if hit == nil {
			rt.Fatal("not found")
		}
		if diff := cmp.Diff(want, shown(hit)); diff != "" {
			rt.Errorf("the response (-want +got):\n%s", diff)
		}
		hit.Release()
	})
}

func TestBrokenValuesAreMisses(t *testing.T) {
	v := values{}
	c := cache.New(cache.NewRemote(v), ignored)
	p := &infer.Response{Final: true, Outputs: []infer.Tensor{input("y", 1, 2, 3)}, Parameters: []infer.Parameter{{Key: "k", Value: math.Pi}}}
	find(t, c, request(), p)
	for name, whole := range v {
		for i := range whole {
			broken := bytes.Clone(whole)
			broken[i] ^= 0x20
			for _, foreign := range [][]byte{broken, whole[:i], append(bytes.Clone(whole), whole[:i+1]...)} {
				v[name] = foreign
				if hit := find(t, c, request(), nil); hit != nil {
					t.Fatalf("% x is a hit: %+v", foreign, hit)
				}
			}
		}
	}
}

func TestLargeResponsesAreNotKeptElsewhere(t *testing.T) {
	v, told := values{}, 0
	c := cache.New(cache.NewRemote(v), ignored)
	c.TooLarge = func(bytes, limit int64) {
		if told++; bytes <= limit {
			t.Errorf("%d bytes are too large for %d", bytes, limit)
		}
	}
	for range 3 {
		find(t, c, request(), &infer.Response{Final: true, Outputs: []infer.Tensor{input("y", make([]byte, 16<<20)...)}})
	}
	if len(v) != 0 {
		t.Error("a value of more than 16 MiB is kept")
	}
	if told != 2 {
		t.Errorf("told %d times, want of the first and the second", told)
	}
}
