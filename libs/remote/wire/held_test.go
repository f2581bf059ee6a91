package wire

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/infer"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

func TestWhatAWorkerHoldsIsReadAsItWasWritten(t *testing.T) {
	work := func(n uint64) infer.Work {
		return infer.Work{Request: infer.RequestID{Origin: 3, Number: n}, Attempt: 2, Epoch: 5}
	}
	held := infer.Held{
		Epoch: 9,
		Running: []infer.Running{{
			Order: 7, Epoch: 5, Instance: infer.InstanceID{Worker: 4, Slot: 1}, Requests: []infer.Work{work(1), work(2)}, Rows: []int64{8, 3},
		}},
		Begun: []infer.Begun{{Origin: 3, First: 1, Bits: []byte{3}}},
	}
	hello := new(nereidv1.WorkerHello)
	Held(held, hello)
	data, err := proto.Marshal(hello)
	if err != nil {
		t.Fatal(err)
	}
	read := new(nereidv1.WorkerHello)
	if err := proto.Unmarshal(data, read); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(held, HeldOf(read)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A worker of the release before says nothing of rows, and one that errs may say
// anything.
func TestRequestsOfUnknownRowsHaveOne(t *testing.T) {
	r := infer.Running{Requests: make([]infer.Work, 3), Rows: []int64{0, -7}}
	for i := range r.Requests {
		if rows := r.RowsOf(i); rows != 1 {
			t.Errorf("request %d has %d rows, want 1", i, rows)
		}
	}
}
