package e2e

import (
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
)

func TestVariantsAreCompared(t *testing.T) {
	config := `backend: "onnxruntime" max_batch_size: 8
		input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }] output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]`
	s := start(t, repository(t, map[string]string{
		"right/config.pbtxt": config, "right/1/model.onnx": string(onnxmodel.Identity(tensor.FP32, "b", "n").Bytes()),
		"same/config.pbtxt": config, "same/1/model.onnx": string(onnxmodel.Identity(tensor.FP32, "b", "n").Bytes()),
		"positive/config.pbtxt": config, "positive/1/model.onnx": string(onnxmodel.Relu(tensor.FP32, "b", "n").Bytes()),
	}))
	compare := func(args ...string) (string, string, int) {
		return nereid(t, append([]string{"compare", "--url=" + s.HTTP, "--rows=2", "--requests=4"}, args...)...)
	}
	if out, errors, status := compare("right", "same", "--shape=INPUT0=2,5"); status != 0 || !strings.Contains(out, "40") || !strings.Contains(out, "8 of 8") {
		t.Errorf("the same: %d %s%s", status, out, errors)
	}
	if out, errors, status := compare("right", "positive", "--shape=INPUT0=2,5"); status != 1 || !strings.Contains(errors, "elements differ by more than") {
		t.Errorf("another: %d %s%s", status, out, errors)
	}
	if out, errors, status := compare("right", "positive", "--shape=INPUT0=2,5", "--range=INPUT0=0:1"); status != 0 {
		t.Errorf("another, where it is the same: %d %s%s", status, out, errors)
	}
	if _, errors, status := compare("right", "positive", "--other-url="+s.HTTP, "--protocol=http", "--input", "INPUT0=[[1,2],[3,4]]"); status != 0 {
		t.Errorf("a given input on two servers: %d %s", status, errors)
	}
	for want, args := range map[string][]string{
		"nothing to compare with": {"right"}, "is open: state the shape": {"right", "same"}, "want numbers with commas": {"right", "same", "--shape=INPUT0=2,-1"},
		"no input \"x\"": {"right", "same", "--shape=INPUT0=1,1", "--range=x=0:1"}, "want LOW:HIGH": {"right", "same", "--shape=INPUT0=1,1", "--range=INPUT0=1:0"},
	} {
		if out, errors, status := compare(args...); status == 0 || !strings.Contains(errors, want) {
			t.Errorf("%v: %d %s%s", args, status, out, errors)
		}
	}
}
