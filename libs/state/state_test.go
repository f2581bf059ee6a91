package state_test

import (
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/state"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

func TestWhatIsWrittenIsReadAgain(t *testing.T) {
	for _, kind := range []modelconfig.DeviceKind{modelconfig.KindCPU, modelconfig.KindGPU, modelconfig.KindModel} {
		if got := state.KindOf(state.Kind(kind)); got != kind {
			t.Errorf("kind %v is read as %v", kind, got)
		}
	}
	for _, s := range []infer.InstanceState{infer.Unknown, infer.Loading, infer.Ready, infer.Unloading, infer.Unavailable} {
		if got := state.InstanceOf(state.Instance(s)); got != s {
			t.Errorf("state %v is read as %v", s, got)
		}
	}
	ref := infer.ModelRef{Namespace: "/models", Name: "m", Version: 2, Generation: 7}
	if got := state.RefOf(state.Ref(ref)); got != ref {
		t.Errorf("%v is read as %v", ref, got)
	}
	if got := state.RefOf(nil); got != (infer.ModelRef{}) {
		t.Errorf("no name is read as %v", got)
	}
	if got := state.InstanceOf(nereidv1.State(99)); got != infer.Unknown {
		t.Errorf("a state of a newer release is read as %v", got)
	}
	if got := state.KindOf(nereidv1.DeviceKind(99)); got != modelconfig.KindCPU {
		t.Errorf("a kind of a newer release is read as %v", got)
	}
}
