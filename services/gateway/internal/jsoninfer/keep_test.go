package jsoninfer

import (
	"runtime"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
)

// A decoder is kept for the requests to come, the memory of a large one is not.
func TestDecoderKeepsNoLargeStrings(t *testing.T) {
	d := &Decoder{Pool: tensor.NewPool(0), MaxTensor: 64 << 20}
	model := &modelconfig.Config{Inputs: []modelconfig.IO{{Name: "x", Datatype: tensor.Bytes, Dims: tensor.Shape{1}}}}
	decode := func(id, data string) {
		t.Helper()
		r := new(infer.Request)
		defer r.Release()
		body := `{"id":"` + id + `","inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":["` + data + `"]}]}`
		if err := d.Decode([]byte(body), model, r, new(Envelope)); err != nil {
			t.Fatal(err)
		}
	}
	large := `\n` + strings.Repeat("a", 1<<20)
	decode(large, large)
	if cap(d.s.text) > keepStrings || cap(d.strings) > keepStrings {
		t.Errorf("%d and %d bytes are kept, want at most %d", cap(d.s.text), cap(d.strings), keepStrings)
	}
	decode(`\nsmall`, `\nsmall`)
	if cap(d.s.text) == 0 || cap(d.strings) == 0 {
		t.Error("nothing is kept for the next request")
	}
}

// Texts of a document outlive it in a request, and those with escapes are copied while
// they are read: both are charged before there is memory for them.
func TestTextsAreCharged(t *testing.T) {
	const n, limit = 4 << 20, 2 << 20
	long := strings.Repeat("x", n)
	escaped := strings.Repeat(`\u0041`, n/6)
	input := func(name, data string) string {
		return `{"inputs":[{"name":"` + name + `","datatype":"BYTES","shape":[1],"data":["` + data + `"]}]}`
	}
	for name, body := range map[string]string{
		"id":                  `{"id":"` + long + `","inputs":[]}`,
		"id with escapes":     `{"id":"` + escaped + escaped + escaped + `","inputs":[]}`,
		"name":                input(long, ""),
		"parameter":           `{"parameters":{"` + long + `":1},"inputs":[]}`,
		"parameter's value":   `{"parameters":{"p":"` + long + `"},"inputs":[]}`,
		"sequence":            `{"parameters":{"sequence_id":"` + long + `"},"inputs":[]}`,
		"element":             input("a", long),
		"element and escapes": input("a", escaped+escaped+escaped+escaped),
		"elements":            `{"inputs":[{"name":"a","datatype":"BYTES","shape":[1],"data":[""` + strings.Repeat(`,""`, n/3) + `]}]}`,
		"region":              `{"inputs":[{"name":"a","datatype":"BYTES","shape":[1],"parameters":{"shared_memory_region":"` + long + `"}}]}`,
	} {
		budget := memory.NewBudget(limit)
		var account memory.Account
		account.Open(budget)
		d := &Decoder{Pool: tensor.NewPool(0), MaxTensor: n * 2, Account: &account}
		var r infer.Request
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := d.Decode([]byte(body), &modelconfig.Config{}, &r, new(Envelope))
		runtime.ReadMemStats(&after)
		r.Release()
		if errs.Of(err) != errs.MemoryFull {
			t.Errorf("%s: %v", name, err)
		}
		if took := int64(after.TotalAlloc-before.TotalAlloc) - int64(len(body)); took > 2*limit { // the test's own copy
			t.Errorf("%s: %d bytes were allocated under a budget of %d", name, took, limit)
		}
		if account.Close(); budget.Reserved() != 0 {
			t.Errorf("%s: %d bytes are charged afterwards", name, budget.Reserved())
		}
	}
}

// A byte of a text may take six in JSON.
func TestEscapedTextsOfResponsesAreCharged(t *testing.T) {
	const n = 1 << 20
	budget := memory.NewBudget(3 << 20)
	var account memory.Account
	account.Open(budget)
	id := strings.Repeat("\x01", n)
	_, err := AppendResponse(nil, id, infer.ModelRef{Name: "m", Version: 1}, &infer.Response{}, new(Envelope), &account)
	if errs.Of(err) != errs.MemoryFull {
		t.Errorf("an id of %d bytes that takes %d: %v", n, 6*n, err)
	}
	dst, err := AppendResponse(nil, id[:100], infer.ModelRef{Name: "m", Version: 1}, &infer.Response{}, new(Envelope), &account)
	if want := `{"id":"` + strings.Repeat(`\u0001`, 100) + `","model_name"`; err != nil || !strings.HasPrefix(string(dst), want) {
		t.Errorf("%v: %.200s", err, dst)
	}
}
