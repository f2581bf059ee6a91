package infer_test

import (
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
)

func TestReleaseGivesBackEveryTensorOnce(t *testing.T) {
	freed := 0
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
	p.Release()
	p.Release() // empty by now
	if freed != 3 {
		t.Errorf("%d buffers freed, want 3", freed)
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
