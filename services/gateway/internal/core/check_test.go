package core_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// batched takes up to 8 rows of A, two floats, and B, any number of strings.
func batched() *modelconfig.Config {
	return &modelconfig.Config{
		MaxBatchSize: 8,
		Inputs:       []modelconfig.IO{io("A", tensor.FP32, 2), io("B", tensor.Bytes, -1)},
		Outputs:      []modelconfig.IO{io("X", tensor.FP32, 2), io("Y", tensor.FP32, 2)},
	}
}

// a and b return valid inputs of one row.
func a() infer.Tensor { return input("A", tensor.FP32, tensor.Shape{1, 2}, 8) }
func b() infer.Tensor { return input("B", tensor.Bytes, tensor.Shape{1, 1}, 0, "x") }

func outputs(names ...string) []infer.Output {
	list := make([]infer.Output, len(names))
	for i, n := range names {
		list[i].Name = n
	}
	return list
}

func TestWrongRequestsGetTritonsTexts(t *testing.T) {
	const batchNote = "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input shape. " +
		"If you want to specify the full shape including the batch dim in your input dims config, try setting max_batch_size to zero. " +
		"See the model configuration docs for more info on max_batch_size."
	single := &modelconfig.Config{Inputs: []modelconfig.IO{io("A", tensor.FP32, 2)}}
	scalar := &modelconfig.Config{Inputs: []modelconfig.IO{io("A", tensor.FP32)}}
	free := &modelconfig.Config{Inputs: []modelconfig.IO{io("A", tensor.FP32, -1, -1, -1)}}
	some := &modelconfig.Config{Inputs: []modelconfig.IO{io("A", tensor.FP32, 2), optional(io("B", tensor.FP32, 2)), optional(io("C", tensor.FP32, 2))}}
	plain := func(name string) infer.Tensor { return input(name, tensor.FP32, tensor.Shape{2}, 8) }
	for _, c := range []struct {
		name    string
		config  *modelconfig.Config
		id      string
		inputs  []infer.Tensor
		outputs []infer.Output
		reason  errs.Reason
		text    string // without the prefix of the request, which those of unknown tensors lack
	}{
		{"an unknown output", batched(), "", []infer.Tensor{a(), b()}, outputs("X", "Z"), errs.OutputUnexpected, "unexpected inference output 'Z' for model 'm'"},
		{"an output twice", batched(), "", []infer.Tensor{a(), b()}, outputs("X", "X"), errs.TensorDuplicate, "output 'X' already exists in request"},
		{"an input twice", batched(), "", []infer.Tensor{a(), a()}, nil, errs.TensorDuplicate, "input 'A' already exists in request"},
		{"no input", batched(), "", nil, nil, errs.InputMissing, "expected 2 inputs but got 0 inputs for model 'm'. Got input(s) [], but missing required input(s) ['A','B']. Please provide all required input(s)."},
		{"one input missing", batched(), "7", []infer.Tensor{b()}, nil, errs.InputMissing, "expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['B'], but missing required input(s) ['A']. Please provide all required input(s)."},
		{"one input too many", batched(), "", []infer.Tensor{b(), a(), plain("C")}, nil, errs.InputUnexpected, "expected 2 inputs but got 3 inputs for model 'm'. Got input(s) ['C','A','B'], but missing required input(s) []. Please provide all required input(s)."},
		{"an unknown input", batched(), "", []infer.Tensor{a(), plain("C")}, nil, errs.InputUnexpected, "unexpected inference input 'C' for model 'm'"},
		{"fewer than the required", some, "", nil, nil, errs.InputMissing, "expected number of inputs between 1 and 3 but got 0 inputs for model 'm'. Got input(s) [], but missing required input(s) ['A']. Please provide all required input(s)."},
		{"only optional ones", some, "", []infer.Tensor{plain("C"), plain("B")}, nil, errs.InputMissing, "expected number of inputs between 1 and 3 but got 2 inputs for model 'm'. Got input(s) ['B','C'], but missing required input(s) ['A']. Please provide all required input(s)."},
		{"no batch dimension", batched(), "", []infer.Tensor{input("A", tensor.FP32, tensor.Shape{}, 4), b()}, nil, errs.ShapeMismatch, "input 'A' has no shape but model requires batch dimension for 'm'"},
		{"unequal rows", batched(), "", []infer.Tensor{a(), input("B", tensor.Bytes, tensor.Shape{2, 1}, 0, "x", "y")}, nil, errs.ShapeMismatch, "input 'A' batch size does not match other inputs for 'm'"},
		{"no rows", batched(), "", []infer.Tensor{input("A", tensor.FP32, tensor.Shape{0, 2}, 0), input("B", tensor.Bytes, tensor.Shape{0, 5}, 0)}, nil, errs.ShapeMismatch, "inference request batch-size must be > 0 for 'm'"},
		{"too many rows", batched(), "", []infer.Tensor{input("A", tensor.FP32, tensor.Shape{9, 2}, 72), input("B", tensor.Bytes, tensor.Shape{9, 0}, 0)}, nil, errs.BatchSizeExceeded, "inference request batch-size must be <= 8 for 'm'"},
		{"another datatype", single, "", []infer.Tensor{input("A", tensor.Int32, tensor.Shape{2}, 8)}, nil, errs.DatatypeMismatch, "inference input 'A' data-type is 'INT32', but model 'm' expects 'FP32'"},
		{"no datatype", single, "", []infer.Tensor{input("A", tensor.Invalid, tensor.Shape{2}, 8)}, nil, errs.DatatypeMismatch, "inference input 'A' data-type is '<invalid>', but model 'm' expects 'FP32'"},
		{"a negative dimension", single, "", []infer.Tensor{input("A", tensor.FP32, tensor.Shape{-1}, 8)}, nil, errs.ShapeMismatch, "All input dimensions should be specified for input 'A' for model 'm', got [-1]"},
		{"another dimension", single, "", []infer.Tensor{input("A", tensor.FP32, tensor.Shape{3}, 12)}, nil, errs.ShapeMismatch, "unexpected shape for input 'A' for model 'm'. Expected [2], got [3]. "},
		{"another rank", single, "", []infer.Tensor{input("A", tensor.FP32, tensor.Shape{1, 2}, 8)}, nil, errs.ShapeMismatch, "unexpected shape for input 'A' for model 'm'. Expected [2], got [1,2]. "},
		{"a scalar's rank", scalar, "", []infer.Tensor{input("A", tensor.FP32, tensor.Shape{1}, 4)}, nil, errs.ShapeMismatch, "unexpected shape for input 'A' for model 'm'. Expected [], got [1]. "},
		{"another dimension in a batch", batched(), "", []infer.Tensor{input("A", tensor.FP32, tensor.Shape{1, 3}, 12), b()}, nil, errs.ShapeMismatch, "unexpected shape for input 'A' for model 'm'. Expected [-1,2], got [1,3]. " + batchNote},
		{"too few bytes", single, "", []infer.Tensor{input("A", tensor.FP32, tensor.Shape{2}, 7)}, nil, errs.ByteSizeMismatch, "input byte size mismatch for input 'A' for model 'm'. Expected 8, got 7"},
		{"too many bytes", single, "", []infer.Tensor{input("A", tensor.FP32, tensor.Shape{2}, 9)}, nil, errs.ByteSizeMismatch, "input byte size mismatch for input 'A' for model 'm'. Expected 8, got 9"},
		{"a size out of range", free, "", []infer.Tensor{input("A", tensor.FP32, tensor.Shape{math.MaxInt64, 2, 2}, 8)}, nil, errs.ShapeMismatch, "input 'A' for model 'm' has shape [9223372036854775807,2,2], whose size in bytes is out of range"},
		{"too few strings", batched(), "", []infer.Tensor{a(), input("B", tensor.Bytes, tensor.Shape{1, 3}, 0, "x", "")}, nil, errs.ByteSizeMismatch, "expected 3 string elements for inference input 'B' for model 'm', got 2"},
		{"too many strings", batched(), "", []infer.Tensor{a(), input("B", tensor.Bytes, tensor.Shape{1, 1}, 0, "x", "y", "z")}, nil, errs.ByteSizeMismatch, "unexpected number of string elements 2 for inference input 'B' for model 'm', expecting 1"},
		{"half a length", batched(), "", []infer.Tensor{a(), input("B", tensor.Bytes, tensor.Shape{1, 1}, 3)}, nil, errs.TensorDataInvalid, "incomplete string length indicator for inference input 'B' for model 'm', expecting 4 bytes but only 3 bytes available. Please make sure the string length indicator is in one buffer."},
		{"half a string", batched(), "", []infer.Tensor{a(), {Name: "B", Datatype: tensor.Bytes, Shape: tensor.Shape{1, 1}, Data: tensor.InHeap([]byte{2, 0, 0, 0, 'x'})}}, nil, errs.TensorDataInvalid, "incomplete string data for inference input 'B', expecting string of length 2 but only 1 bytes available"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := ready("m", c.config)
			h := newGateway(t, &core.Model{Name: "m", Versions: []*core.Version{v}})
			r := h.NewRequest(v)
			r.ID, r.Inputs, r.Outputs = c.id, c.inputs, c.outputs
			p, _, err := h.Infer(t.Context(), v, r)
			prefix := "[request id: <id_unknown>] "
			if c.id != "" {
				prefix = "[request id: " + c.id + "] "
			}
			if strings.HasPrefix(c.text, "unexpected inference") || strings.HasPrefix(c.text, "incomplete string data") {
				prefix = ""
			}
			if d := cmp.Diff(refusal{c.reason, prefix + c.text}, refusalOf(err)); d != "" || p != nil {
				t.Error(p, d)
			}
			for i := range r.Inputs {
				if r.Inputs[i].Data.Buffer != nil {
					t.Errorf("input '%s' was not released", r.Inputs[i].Name)
				}
			}
			if h.InFlight() != 0 {
				t.Error("a refused request is in flight")
			}
		})
	}
}

// The correlation ID must have the type of the model's control input for it. What depends on the state of the
// sequence, the scheduler refuses.
func TestCorrelationIDsAreOfTheControlsType(t *testing.T) {
	control := func(datatype tensor.Datatype) *modelconfig.SequenceBatching {
		return &modelconfig.SequenceBatching{Slots: 1, Controls: []modelconfig.SequenceControl{
			{Kind: modelconfig.ControlStart, Input: "START", Datatype: tensor.Int32, True: 1},
			{Kind: modelconfig.ControlCorrelationID, Input: "CORRID", Datatype: datatype},
		}}
	}
	long := strings.Repeat("x", 129)
	const mismatch = "[request id: <id_unknown>] sequence batching control 'CORRID' data-type is '%s', but model 'm' expects '%s'"
	for name, c := range map[string]struct {
		batching *modelconfig.SequenceBatching
		given    infer.Sequence
		want     refusal
	}{
		"a text for a number":               {control(tensor.Uint64), infer.Sequence{Key: "x"}, refusal{errs.DatatypeMismatch, fmt.Sprintf(mismatch, "BYTES", "UINT64")}},
		"a text for a short number":         {control(tensor.Int32), infer.Sequence{Key: "x"}, refusal{errs.DatatypeMismatch, fmt.Sprintf(mismatch, "BYTES", "INT32")}},
		"a number for a text":               {control(tensor.Bytes), infer.Sequence{ID: 7}, refusal{errs.DatatypeMismatch, fmt.Sprintf(mismatch, "UINT64", "BYTES")}},
		"a text for a text":                 {control(tensor.Bytes), infer.Sequence{Key: long[1:]}, refusal{}},
		"a number for a short number":       {control(tensor.Int32), infer.Sequence{ID: 1 << 40}, refusal{}},
		"none for a text":                   {control(tensor.Bytes), infer.Sequence{}, refusal{}},
		"a text without a control":          {&modelconfig.SequenceBatching{Slots: 1}, infer.Sequence{Key: "x"}, refusal{}},
		"a text for a model without any":    {nil, infer.Sequence{Key: "x"}, refusal{}},
		"a long text":                       {control(tensor.Bytes), infer.Sequence{Key: long}, refusal{errs.Unsupported, "string correlation ID cannot be longer than 128 characters"}},
		"a long text for a model with none": {nil, infer.Sequence{Key: long}, refusal{errs.Unsupported, "string correlation ID cannot be longer than 128 characters"}},
	} {
		t.Run(name, func(t *testing.T) {
			v := ready("m", &modelconfig.Config{Inputs: []modelconfig.IO{io("A", tensor.FP32, 2)}, Sequences: c.batching})
			r := &infer.Request{Model: v.Ref, Inputs: []infer.Tensor{input("A", tensor.FP32, tensor.Shape{2}, 8)}, Sequence: c.given}
			var got refusal
			if err := core.Check(v, r); err != nil {
				got = refusalOf(err)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// For a request with several faults the error is the one that Triton finds first. Each case has all the faults
// of the cases after it.
func TestFaultsAreFoundInTritonsOrder(t *testing.T) {
	wrongSize := func() infer.Tensor { return input("A", tensor.FP32, tensor.Shape{1, 2}, 1) }
	wrongShape := func() infer.Tensor { return input("A", tensor.FP32, tensor.Shape{1, 3}, 1) }
	wrongType := func() infer.Tensor { return input("A", tensor.Int8, tensor.Shape{1, 3}, 1) }
	tooMany := func(name string) infer.Tensor { return input(name, tensor.Int8, tensor.Shape{9, 3}, 1) }
	unequal := func(name string) infer.Tensor { return input(name, tensor.Int8, tensor.Shape{3, 3}, 1) }
	for _, c := range []struct {
		want    errs.Reason
		outputs []infer.Output
		inputs  []infer.Tensor
	}{
		{errs.OutputUnexpected, outputs("Z"), []infer.Tensor{tooMany("A"), unequal("A"), unequal("C")}},
		{errs.TensorDuplicate, nil, []infer.Tensor{tooMany("A"), unequal("A"), unequal("C")}},
		{errs.InputUnexpected, nil, []infer.Tensor{tooMany("A"), unequal("B"), unequal("C")}},
		{errs.InputUnexpected, nil, []infer.Tensor{tooMany("A"), unequal("C")}},
		{errs.ShapeMismatch, nil, []infer.Tensor{tooMany("A"), unequal("B")}},
		{errs.BatchSizeExceeded, nil, []infer.Tensor{tooMany("A"), tooMany("B")}},
		{errs.DatatypeMismatch, nil, []infer.Tensor{wrongType(), b()}},
		{errs.ShapeMismatch, nil, []infer.Tensor{wrongShape(), b()}},
		{errs.ByteSizeMismatch, nil, []infer.Tensor{wrongSize(), b()}},
	} {
		v := ready("m", batched())
		h := newGateway(t, &core.Model{Name: "m", Versions: []*core.Version{v}})
		r := h.NewRequest(v)
		r.Inputs, r.Outputs = c.inputs, c.outputs
		if _, _, err := h.Infer(t.Context(), v, r); errs.Of(err) != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}

// Texts and shapes share messages with those of other requests, and wait in bounded queues, so they are bounded
// wherever a client puts them.
func TestDescriptorsAreBounded(t *testing.T) {
	const most = infer.MaxDescriptorBytes
	for name, fill := range map[string]func(r *infer.Request, n int){
		"an id": func(r *infer.Request, n int) { r.ID = strings.Repeat("x", n) },
		"a parameter": func(r *infer.Request, n int) {
			r.Parameters = []infer.Parameter{{Key: "p", Value: strings.Repeat("x", n-49)}}
		},
		"a parameter's key": func(r *infer.Request, n int) {
			r.Parameters = []infer.Parameter{{Key: strings.Repeat("x", n-48), Value: true}}
		},
		"many parameters": func(r *infer.Request, n int) {
			r.Parameters = slices.Repeat([]infer.Parameter{{Key: strings.Repeat("x", 80), Value: int64(1)}}, n/128)
			r.ID = strings.Repeat("x", n%128)
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := ready("m", batched())
			h := newGateway(t, &core.Model{Name: "m", Versions: []*core.Version{v}})
			h.submit = func(r *infer.Request) error {
				h.table.Respond(&infer.Response{Work: r.Work, Final: true})
				return nil
			}
			try := func(bytes int) error {
				r := h.NewRequest(v)
				r.Inputs = []infer.Tensor{a(), b()}
				fill(r, bytes-int(r.DescriptorBytes()))
				if got := r.DescriptorBytes(); got != int64(bytes) {
					t.Fatalf("the request has %d bytes, want %d", got, bytes)
				}
				_, _, err := h.Infer(t.Context(), v, r)
				return err
			}
			if err := try(most); err != nil {
				t.Errorf("as much as may be: %v", err)
			}
			if err := try(most + 1); errs.Of(err) != errs.BodyTooLarge || len(err.Error()) > 1000 {
				t.Errorf("one more: %.1000v", err)
			}
		})
	}
}

func TestParametersAreCounted(t *testing.T) {
	v := ready("m", batched())
	h := newGateway(t, &core.Model{Name: "m", Versions: []*core.Version{v}})
	r := h.NewRequest(v)
	r.Inputs, r.Parameters = []infer.Tensor{a(), b()}, make([]infer.Parameter, 8193)
	if _, _, err := h.Infer(t.Context(), v, r); errs.Of(err) != errs.BodyTooLarge {
		t.Errorf("got %v", err)
	}
}

func TestRightRequestsHaveTheirRows(t *testing.T) {
	scalar := &modelconfig.Config{Inputs: []modelconfig.IO{io("A", tensor.FP32)}}
	some := &modelconfig.Config{Inputs: []modelconfig.IO{optional(io("A", tensor.FP32, 2)), optional(io("B", tensor.FP32, 2))}}
	for _, c := range []struct {
		name   string
		config *modelconfig.Config
		inputs []infer.Tensor
		rows   int64
	}{
		{"one row", batched(), []infer.Tensor{b(), a()}, 1},
		{"as many as may be", batched(), []infer.Tensor{input("A", tensor.FP32, tensor.Shape{8, 2}, 64), input("B", tensor.Bytes, tensor.Shape{8, 0}, 0)}, 8},
		{"a model without batches", scalar, []infer.Tensor{input("A", tensor.FP32, tensor.Shape{}, 4)}, 1},
		{"optional inputs left out", some, nil, 1},
		{"one optional input", some, []infer.Tensor{input("B", tensor.FP32, tensor.Shape{2}, 8)}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := ready("m", c.config)
			h := newGateway(t, &core.Model{Name: "m", Versions: []*core.Version{v}})
			rows := int64(-1)
			h.submit = func(r *infer.Request) error {
				rows = r.BatchSize
				h.table.Respond(&infer.Response{Work: r.Work, Final: true})
				return nil
			}
			r := h.NewRequest(v)
			r.Inputs = c.inputs
			if _, _, err := h.Infer(t.Context(), v, r); err != nil || rows != c.rows {
				t.Errorf("%d rows, %v", rows, err)
			}
		})
	}
}
