package codec

import (
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// A tensor whose bytes come twice has the last ones, in memory that nobody else
// is given.
func TestBytesThatComeTwice(t *testing.T) {
	w := NewWriter(new(Spares))
	begun := w.begin(SchedulerResponse)
	for range 2 {
		m := w.open(4)
		w.number(2, uint64(tensor.Uint8))
		shape := w.open(3)
		w.bytes = append(w.bytes, 4)
		w.close(shape)
		ref := w.open(4)
		w.data(inlinePlace, tensor.InHeap([]byte("once")))
		w.data(inlinePlace, tensor.InHeap([]byte("last")))
		w.close(ref)
		w.close(m)
	}
	if err := w.end(begun); err != nil {
		t.Fatal(err)
	}
	envelope := w.Take()
	defer envelope.Free()
	pool := tensor.NewPool(0)
	r := NewReader(pool)
	var got *infer.Response
	err := r.Each(envelope, func(_ protowire.Number, b Body) (err error) {
		got, _, err = r.Response(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer got.Release()
	for range 10 {
		others, err := pool.Get(got.Outputs[0].Data.Buffer.Len())
		if err != nil {
			t.Fatal(err)
		}
		clear(others.Bytes()) // and is not released yet: it stays the test's
	}
	for i := range got.Outputs {
		if b, err := got.Outputs[i].Data.Bytes(); string(b) != "last" || err != nil {
			t.Errorf("output %d has the bytes %q: %v", i, b, err)
		}
	}
}
