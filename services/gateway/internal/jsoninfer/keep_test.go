package jsoninfer

import (
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
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
