package codec

import (
	"testing"
	"time"

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
			Batch: infer.BatchID{Epoch: 5, Number: 7}, Instance: infer.InstanceID{Worker: 4, Slot: 1}, Units: []infer.Work{work(1), work(2)}, BatchSizes: []int64{8, 3},
			InstanceFree: true,
		}},
		Started: []infer.Started{{Origin: 3, First: 1, Bits: []byte{3}}},
		Memory:  1 << 30,
		Sequences: []infer.HeldSequence{{
			Model: infer.ModelRef{Namespace: "/m", Name: "chat", Version: 2, Generation: 6}, Sequence: infer.Sequence{Key: "a"},
			Instance: infer.InstanceID{Worker: 4, Slot: 1}, BatchSlot: 3, Idle: time.Second, Request: work(3),
		}},
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

// A worker that errs may say anything of batch sizes.
func TestRequestsOfUnknownSizeHaveOne(t *testing.T) {
	r := infer.Running{Units: make([]infer.Work, 3), BatchSizes: []int64{0, -7}}
	for i := range r.Units {
		if size := r.BatchSizeOf(i); size != 1 {
			t.Errorf("request %d has the batch size %d, want 1", i, size)
		}
	}
}

func TestGrantsAreReadAsTheyWereWritten(t *testing.T) {
	for _, credits := range []int{2, 0, -2} {
		g := infer.Grant{
			Instance: infer.InstanceID{Worker: 4, Slot: 1}, Model: infer.ModelRef{Name: "m", Version: 1, Generation: 2},
			Name: "m_0_0", Device: "cpu", Credits: credits, Pipelined: 1,
			Warmed: []infer.Cost{{Magnitude: 5, BatchSize: 8, Executions: 2, Mean: time.Millisecond, Deviation: 0.5}},
		}
		if diff := cmp.Diff(g, GrantOf(Grant(g))); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}
