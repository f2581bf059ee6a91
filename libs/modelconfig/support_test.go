package modelconfig_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/modelconfig"
)

func TestSettingsWithoutEffectAreTold(t *testing.T) {
	const tensors = `backend: "onnxruntime" input { name: "x" data_type: TYPE_INT8 dims: [ 1 ] } output { name: "y" data_type: TYPE_INT8 dims: [ 1 ] } `
	const accelerator = `optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } } `
	for text, want := range map[string][]string{
		"":                                nil,
		"response_cache { enable: true }": nil,
		"response_cache { }":              nil,
		"instance_group { rate_limiter { priority: 2 } }": nil,
		"optimization { priority: PRIORITY_MAX }":         {"optimization.priority has no effect: models have no priority over one another"},
		accelerator: {"optimization.execution_accelerators.gpu_execution_accelerator has no effect: instances on CPUs run without it"},
		accelerator + "instance_group { kind: KIND_GPU }": nil,
	} {
		config, err := modelconfig.Load([]byte(tensors+text), modelconfig.Directory{Name: "m"})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, modelconfig.Unused(config)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}
