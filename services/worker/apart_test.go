package worker

import (
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
)

func TestApartModelsReachNoOthers(t *testing.T) {
	freed := 0
	input := tensor.Wrap(nil, false, func(*tensor.Buffer) { freed++ })
	refused := make(map[string]error)
	apart{}.Call(&infer.Call{Inputs: []infer.Tensor{{Data: tensor.InBuffer(input, 0, 0)}}}, func(r *infer.Response) {
		if !r.Final {
			t.Error("the call goes on")
		}
		refused["call"] = r.Err
	})()
	refused["load"] = apart{}.LoadModel(t.Context(), "m", "", nil)
	refused["unload"] = apart{}.UnloadModel(t.Context(), "m", false)
	_, refused["ready"] = apart{}.ModelReady("m", "")
	for what, err := range refused {
		if errs.Of(err) != errs.Unsupported || !strings.Contains(err.Error(), "in one process only") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if freed != 1 {
		t.Errorf("the input was released %d times", freed)
	}
}
