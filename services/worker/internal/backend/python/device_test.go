package python

import (
	"encoding/json"
	"strings"
	"testing"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// A model is told which device its instance is on, in its arguments and in its configuration.
func TestDeviceOfAnInstance(t *testing.T) {
	config, err := modelconfig.FromProto(&inference.ModelConfig{
		Name: "m", Backend: "python",
		Input:  []*inference.ModelInput{{Name: "x", DataType: inference.DataType_TYPE_FP32, Dims: []int64{1}}},
		Output: []*inference.ModelOutput{{Name: "y", DataType: inference.DataType_TYPE_FP32, Dims: []int64{1}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	m := &model{version: backend.Version{Ref: infer.ModelRef{Name: "m", Version: 1}, Config: config}}
	for _, tt := range []struct {
		spec                    backend.InstanceSpec
		visible, kind, id, says string
	}{
		{backend.InstanceSpec{Kind: modelconfig.KindCPU}, "", "CPU", "0", `"kind":"KIND_CPU"`},
		{backend.InstanceSpec{Kind: modelconfig.KindGPU, Device: 3}, "", "GPU", "3", `"kind":"KIND_GPU","count":1,"gpus":[3]`},
		{backend.InstanceSpec{Kind: modelconfig.KindGPU, Device: 3}, "MIG-a", "GPU", "0", `"kind":"KIND_GPU"`},
	} {
		t.Setenv("CUDA_VISIBLE_DEVICES", tt.visible)
		text, err := m.header(message{Type: "initialize"}, tt.spec)
		if err != nil {
			t.Fatal(err)
		}
		var sent message
		if err := json.Unmarshal(text, &sent); err != nil {
			t.Fatal(err)
		}
		if sent.Args["model_instance_kind"] != tt.kind || sent.Args["model_instance_device_id"] != tt.id || !strings.Contains(sent.Args["model_config"], tt.says) {
			t.Errorf("%+v: %v", tt.spec, sent.Args)
		}
	}
}
