package export

import (
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/shm"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// A worker can answer with the inputs of the request, and with nothing else of
// the gateway's memory.
func TestOnlyInputsOfTheRequestAreItsAnswers(t *testing.T) {
	arena, err := shm.New(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	defer arena.Close()
	pool, offers := tensor.NewPoolOf(arena, 0), NewOffers(arena)
	const n, offset = 64 << 10, 100
	id := func(number uint64) infer.RequestID { return infer.RequestID{Origin: 1, Number: number} }
	var at [2]uint64
	for i := range at {
		b, err := pool.Get(offset + n + offset)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Release()
		r := &infer.Request{Work: infer.Work{Request: id(uint64(i))}, Inputs: []infer.Tensor{{Data: tensor.InBuffer(b, offset, n)}}}
		named := offers.Offer(r).Inputs[0].Data
		at[i] = named.Slot + offset
	}
	for name, tt := range map[string]struct {
		request, at uint64
		n           int64
		want        bool
	}{
		"the input":             {0, at[0], n, true},
		"its end":               {0, at[0] + n - 1, 1, true},
		"nothing of it":         {0, at[0] + n, 0, true},
		"what lies before":      {0, at[0] - 1, 1, false},
		"what lies behind":      {0, at[0] + n, 1, false},
		"more than it has":      {0, at[0] + 1, n, false},
		"far more":              {0, at[0] + 1, 1<<63 - 1, false},
		"less than nothing":     {0, at[0], -1, false},
		"another request's":     {0, at[1], n, false},
		"its own":               {1, at[1], n, true},
		"an unknown request's":  {2, at[0], n, false},
		"the beginning of time": {0, 0, n, false},
	} {
		got, ok := offers.own(id(tt.request), tt.at, tt.n)
		if ok != tt.want {
			t.Errorf("%s: %v", name, ok)
		}
		if data, err := got.Bytes(); ok && (err != nil || int64(len(data)) != tt.n) {
			t.Errorf("%s: %d bytes, %v", name, len(data), err)
		}
		got.Release()
	}
	offers.Forget(id(0))
	if _, ok := offers.own(id(0), at[0], n); ok {
		t.Error("an input is an answer after its request")
	}
	offers.Forget(id(1))
}
