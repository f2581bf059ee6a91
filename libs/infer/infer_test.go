package infer_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
)

func TestReleaseGivesBackEveryTensorOnce(t *testing.T) {
	freed, released := 0, 0
	input := func() infer.Tensor {
		b := tensor.Wrap(make([]byte, 4), false, func(*tensor.Buffer) { freed++ })
		return infer.Tensor{Data: tensor.InBuffer(b, 0, 4)}
	}
	r := infer.Request{Inputs: []infer.Tensor{input(), {}, input()}}
	if got := r.InputBytes(); got != 8 {
		t.Errorf("InputBytes = %d, want 8", got)
	}
	r.Release()
	p := infer.Response{Outputs: []infer.Tensor{input()}}
	p.OnRelease = func() { released++ }
	p.Release()
	p.Release() // empty by now
	if freed != 3 || released != 1 {
		t.Errorf("%d buffers freed, %d responses released, want 3 and 1", freed, released)
	}
}

func TestWants(t *testing.T) {
	all := infer.Request{}
	one := infer.Request{Outputs: []infer.Output{{Name: "A"}}}
	if !all.Wants("B") || !one.Wants("A") || one.Wants("B") {
		t.Error("Wants does not follow the requested outputs")
	}
}

func TestTimingPhases(t *testing.T) {
	tm := infer.Timing{Start: 10, InputDone: 12, InferDone: 20, Done: 21}
	if tm.Input() != 2*time.Nanosecond || tm.Infer() != 8 || tm.Output() != 1 {
		t.Errorf("phases %v %v %v, want 2 8 1", tm.Input(), tm.Infer(), tm.Output())
	}
}

func TestTalliesCountNegativeTimesAsNone(t *testing.T) {
	var tally infer.Tally
	for _, d := range []time.Duration{5, -3, 0, 2} {
		tally.Add(d)
	}
	if tally != (infer.Tally{Count: 4, Time: 7}) {
		t.Errorf("%+v", tally)
	}
}

func TestAReturnedRequestIsReleasedWithItsResponse(t *testing.T) {
	freed := 0
	b := tensor.Wrap(make([]byte, 4), false, func(*tensor.Buffer) { freed++ })
	r := infer.Response{Returned: &infer.Request{Inputs: []infer.Tensor{{Data: tensor.InBuffer(b, 0, 4)}}}}
	r.Release()
	r.Release()
	if freed != 1 || r.Returned != nil {
		t.Errorf("freed %d times, the response still has %v", freed, r.Returned)
	}
}

func TestResponsesThatEndWork(t *testing.T) {
	w, err := infer.Work{Request: infer.RequestID{Origin: 1, Number: 2}, Attempt: 3}, errors.New("cause")
	if r := infer.Fail(w, err); r.Work != w || !errors.Is(r.Err, err) || !r.Final || r.Immediate {
		t.Errorf("Fail = %+v", r)
	}
	if r := infer.Refuse(w, err); r.Work != w || !errors.Is(r.Err, err) || !r.Final || !r.Immediate {
		t.Errorf("Refuse = %+v", r)
	}
}

func TestStatesHaveTritonsWords(t *testing.T) {
	for state, want := range map[infer.InstanceState]string{
		infer.Unknown: "UNKNOWN", infer.Loading: "LOADING", infer.Ready: "READY", infer.Unloading: "UNLOADING", infer.Unavailable: "UNAVAILABLE", 99: "UNKNOWN",
	} {
		if got := state.String(); got != want {
			t.Errorf("state %d is %s, want %s", state, got, want)
		}
	}
}

func TestBatchSizesThatAreNotToldAreOne(t *testing.T) {
	r := infer.Running{BatchSizes: []int64{3, 0}}
	for i, want := range []int64{3, 1, 1, 1} {
		if got := r.BatchSizeOf(i); got != want {
			t.Errorf("request %d has the batch size %d, want %d", i, got, want)
		}
	}
}

func TestPoolsHaveNamesThatKeysCanHold(t *testing.T) {
	for name, want := range map[string]bool{"default": true, "a.b-c": true, "": false, "a/b": false, "a=b": false, "a,b": false, "a b": false, "a\n": false} {
		if infer.ValidPool(name) != want {
			t.Errorf("pool %q is valid: %t, want %t", name, !want, want)
		}
	}
}

func TestCorrelationIDsAreNumbersOrTexts(t *testing.T) {
	for want, s := range map[string]infer.Sequence{"0": {}, "18446744073709551615": {ID: 1<<64 - 1}, "chat": {Key: "chat", Start: true}} {
		if got := s.CorrelationID(); got != want {
			t.Errorf("%+v reads %s, want %s", s, got, want)
		}
	}
}

func TestRestOfABatchKeepsWhatBelongsTogether(t *testing.T) {
	one, two, three := &infer.Request{ID: "1"}, &infer.Request{ID: "2"}, &infer.Request{ID: "3"}
	b := &infer.Batch{
		ID: infer.BatchID{Epoch: 1, Number: 2}, Instance: infer.InstanceID{Worker: 3}, LatestStart: 4,
		Requests: []*infer.Request{one, two, three}, Enqueued: []mono.Time{5, 6, 7}, Slots: []infer.Slot{{Index: 1}, {Index: 2}, {Index: 3}},
	}
	want := *b
	want.Requests, want.Enqueued, want.Slots = []*infer.Request{one, three}, []mono.Time{5, 7}, []infer.Slot{{Index: 1}, {Index: 3}}
	if diff := cmp.Diff(&want, b.Only(func(i int) bool { return i != 1 })); diff != "" {
		t.Error(diff)
	}
}
