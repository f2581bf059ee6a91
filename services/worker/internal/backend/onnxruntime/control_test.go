//go:build cgo

package onnxruntime_test

import (
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
)

// The input for a control has one element, of the control's datatype.
func TestControlsThatDisagreeWithTheModelAreRefused(t *testing.T) {
	b, _ := open(t)
	start := func(input string, d tensor.Datatype) *modelconfig.Config {
		c := config(8, ios(io("INPUT0", tensor.FP32, 1)), ios(io("OUTPUT0", tensor.FP32, 1)))
		c.Sequences = &modelconfig.SequenceBatching{Controls: []modelconfig.SequenceControl{{Kind: modelconfig.ControlStart, Input: input, Datatype: d}}}
		return c.ForBackend()
	}
	wide := onnxmodel.AddSub(tensor.FP32, "b", 2)
	wide.Graph.Nodes = wide.Graph.Nodes[:1]
	wide.Graph.Outputs = wide.Graph.Outputs[:1]
	narrow := onnxmodel.AddSub(tensor.FP32, "b", 1)
	narrow.Graph.Nodes, narrow.Graph.Outputs = narrow.Graph.Nodes[:1], narrow.Graph.Outputs[:1]
	both := start("INPUT1", tensor.FP32)
	both.Inputs[0].Dims, both.Outputs[0].Dims = tensor.Shape{2}, tensor.Shape{2}
	for _, tt := range []struct {
		model  onnxmodel.Model
		config *modelconfig.Config
		want   string // nothing if it is served
	}{
		{narrow, start("INPUT1", tensor.FP32), ""},
		{narrow, start("START", tensor.FP32), "configuration specified sequence control 'START', but model does not provide that input"},
		{narrow, start("INPUT1", tensor.Int32), "unable to load model 'm', sequence control 'INPUT1', the model expects data-type TYPE_FP32 but the model configuration specifies data-type TYPE_INT32"},
		{wide, both, "unable to load model 'm', sequence control 'INPUT1' in model has dims [2] but dims [1] is expected"},
	} {
		m, err := b.Load(t.Context(), version(t, tt.model, tt.config))
		if err == nil {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}
		if got := errs.From(err); tt.want == "" && err != nil || tt.want != "" && (err == nil || got.Reason != errs.LoadFailed || !strings.HasSuffix(got.Msg, tt.want)) {
			t.Errorf("%v, want %q", err, tt.want)
		}
	}
}
