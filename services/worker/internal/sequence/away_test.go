package sequence_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// restarter is an instance that is away when the test says so.
type restarter struct {
	backend.Instance
	tell func(backend.Condition)
}

func (r *restarter) Watch(tell func(backend.Condition)) { r.tell = tell }

// What a backend's instance has of its sequences is lost with its process.
func TestSequencesAreLostWithTheProcess(t *testing.T) {
	c := controlled(4)
	m, _ := prepare(t, backend.Version{Config: c}, nil)
	r := &restarter{Instance: engine(func(b backend.Batch) {
		for i := range b.Requests() {
			b.Respond(i, &infer.Response{Final: true, Outputs: []infer.Tensor{{Name: "y", Datatype: tensor.FP32, Shape: tensor.Shape{1}, Data: tensor.InHeap(make([]byte, 4))}}})
		}
		b.Done()
	})}
	in := m.Instance(r)
	told := 0
	in.Watch(func(backend.Condition) { told++ })
	for _, step := range []struct {
		flags string
		lost  bool
		after error
	}{
		{"S", false, nil},
		{"", false, errors.New("dead")},
		{"", true, nil},
		{"S", false, nil},
	} {
		b := new(batch).add(request(c, 1), place(0, 1, step.flags))
		in.Execute(b)
		if got := outputs(t, b.responses[0])[0]; strings.HasPrefix(got, "sequence_lost") != step.lost {
			t.Errorf("a request with %q gets %s", step.flags, got)
		}
		r.tell(backend.Condition{Away: step.after})
	}
	if in.Watch(nil); told != 4 || r.tell != nil {
		t.Errorf("told %d times, watched %t", told, r.tell != nil)
	}
}
