package export

import (
	"testing"

	"github.com/nereid-serving/nereid/libs/errs"
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
	pool, exports := tensor.NewPoolOf(arena, 0), NewExports(arena)
	const n, offset = 64 << 10, 100
	var inputs [3][]infer.Tensor // of the third there are none
	var leases [2]Lease
	var at [2]uint64
	for i := range at {
		b, err := pool.Get(offset + n + offset)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Release()
		inputs[i], leases[i] = exports.Lend([]infer.Tensor{{Data: tensor.InBuffer(b, offset, n)}}, 1)
		at[i] = inputs[i][0].Data.Slot + offset
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
		got, err := exports.part(inputs[tt.request], tensor.Ref{Place: tensor.Remote, Holder: 1, Slot: tt.at, Length: tt.n})
		if (err == nil) != tt.want || err != nil && errs.Of(err) != errs.TransferFailed {
			t.Errorf("%s: %v", name, err)
		}
		if data, failed := got.Bytes(); err == nil && (failed != nil || int64(len(data)) != tt.n) {
			t.Errorf("%s: %d bytes, %v", name, len(data), failed)
		}
		got.Release()
	}
	leases[0].Release()
	if _, err := exports.part(inputs[0], tensor.Ref{Place: tensor.Remote, Holder: 1, Slot: at[0], Length: n}); err == nil {
		t.Error("an input is an answer after its request")
	}
	leases[1].Release()
	if exports.Len() > 0 {
		t.Error("something is lent without a lease")
	}
}
