//go:build cgo

package onnxruntime_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/onnxruntime"
)

// failure is a response's error as tests compare it.
type failure struct {
	Reason errs.Reason
	Msg    string
}

func failed(t *testing.T, r *infer.Response) failure {
	t.Helper()
	if r.Err == nil {
		r.Release()
		t.Fatal("the request succeeded")
	}
	if len(r.Outputs) != 0 {
		t.Error("a failed response has outputs")
	}
	return failure{errs.Of(r.Err), errs.From(r.Err).Msg}
}

func TestRequestsThatDoNotFitFailAlone(t *testing.T) {
	b, _ := open(t)
	in := addSub(t, b, 8, 2)
	good := func() *infer.Request { return addSubRequest(1, 2, 1, 2) }
	change := func(f func(*infer.Request)) *infer.Request {
		r := good()
		f(r)
		return r
	}
	tests := []struct {
		name string
		bad  *infer.Request
		want failure
	}{
		{
			"input missing", change(func(r *infer.Request) { r.Inputs = r.Inputs[:1] }),
			failure{errs.InputMissing, "input 'INPUT1' is missing for model 'm'"},
		},
		{
			"another datatype", change(func(r *infer.Request) { r.Inputs[0].Datatype = tensor.FP32 }),
			failure{errs.DatatypeMismatch, "inference input 'INPUT0' data-type is 'FP32', but model 'm' expects 'INT32'"},
		},
		{
			"another shape", change(func(r *infer.Request) { r.Inputs[1].Shape = tensor.Shape{1, 3} }),
			failure{errs.ShapeMismatch, "unexpected shape for input 'INPUT1' for model 'm'. Expected [-1,2], got [1,3]."},
		},
		{
			"another rank", change(func(r *infer.Request) { r.Inputs[1].Shape = nil }),
			failure{errs.ShapeMismatch, "unexpected shape for input 'INPUT1' for model 'm'. Expected [-1,2], got []."},
		},
		{
			"rows that its shape does not have", change(func(r *infer.Request) { r.BatchSize = 2 }),
			failure{errs.ShapeMismatch, "unexpected shape for input 'INPUT0' for model 'm'. Expected [-1,2], got [1,2]."},
		},
		{
			"too few bytes", change(func(r *infer.Request) { r.Inputs[0].Data.Length = 4 }),
			failure{errs.ByteSizeMismatch, "input byte size mismatch for input 'INPUT0' for model 'm'. Expected 8, got 4"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := run(t, in, good(), tt.bad, good())
			if d := cmp.Diff(tt.want, failed(t, got.response(1))); d != "" {
				t.Error(d)
			}
			for _, i := range []int{0, 2} {
				if d := cmp.Diff(addSubAnswer(1, 2, 1, 2), outputs(t, got.response(i))); d != "" {
					t.Errorf("its neighbour %d: %s", i, d)
				}
			}
			if got.executed != 1 {
				t.Errorf("the model ran %d times, want once", got.executed)
			}
		})
	}
}

func TestBatchAboveTheMaximumFails(t *testing.T) {
	b, _ := open(t)
	in := addSub(t, b, 2, 2)
	got := run(t, in, addSubRequest(2, 2, 0, 0), addSubRequest(1, 2, 0, 0))
	want := failure{errs.ExecutionFailed, "batch size 3 for 'm', max allowed is 2"}
	for i := range 2 {
		if d := cmp.Diff(want, failed(t, got.response(i))); d != "" {
			t.Error(d)
		}
	}
}

func TestMalformedStrings(t *testing.T) {
	b, _ := open(t)
	in := instance(t, b, onnxmodel.Identity(tensor.Bytes, 2), config(0,
		ios(io("INPUT0", tensor.Bytes, 2)), ios(io("OUTPUT0", tensor.Bytes, 2))))
	short := func(bytes int) failure {
		return failure{errs.TensorDataInvalid, fmt.Sprintf("expected 2 string elements for inference input 'INPUT0' for model 'm', got %d bytes", bytes)}
	}
	shim := func(text string) failure {
		return failure{errs.ExecutionFailed, "onnx runtime error 2: tensor 'INPUT0': " + text}
	}
	tests := map[string]struct {
		data string
		want failure
	}{
		"no bytes":        {"", short(0)},
		"one element":     {text("a"), short(5)},
		"one long one":    {text("abcd"), shim("fewer string elements than its shape needs")},
		"cut off length":  {text("abc") + "\x01\x00", shim("fewer string elements than its shape needs")},
		"too many":        {text("a", "b", "c"), shim("more string elements than its shape needs")},
		"cut off element": {text("a") + "\x02\x00\x00\x00x", shim("a string element is cut off")},
		"huge length":     {text("a") + "\xff\xff\xff\xffx", shim("a string element is cut off")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := failed(t, run(t, in, request(1, value{"INPUT0", tensor.Bytes, tensor.Shape{2}, tt.data})).response(0))
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestFailedRunAnswersAllAndTheNextSucceeds(t *testing.T) {
	b, _ := open(t)
	m := onnxmodel.AddSub(tensor.FP32, "b", "n")
	in := instance(t, b, m, config(8,
		ios(io("INPUT0", tensor.FP32, -1), io("INPUT1", tensor.FP32, -1)),
		ios(io("OUTPUT0", tensor.FP32, -1), io("OUTPUT1", tensor.FP32, -1))))
	ask := func(n int64) *infer.Request {
		return request(1,
			value{"INPUT0", tensor.FP32, tensor.Shape{1, 3}, pack(make([]float32, 3))},
			value{"INPUT1", tensor.FP32, tensor.Shape{1, n}, pack(make([]float32, n))})
	}
	got := run(t, in, ask(2), ask(2))
	for i := range 2 {
		f := failed(t, got.response(i))
		if f.Reason != errs.ExecutionFailed || !strings.HasPrefix(f.Msg, "onnx runtime error ") || !strings.Contains(f.Msg, "broadcast") {
			t.Errorf("request %d: %+v", i, f)
		}
	}
	if got.executed != 0 {
		t.Errorf("%d runs are counted, want none that failed", got.executed)
	}
	outputs(t, run(t, in, ask(3)).response(0))
}

func TestOutputsThatBreakTheConfigurationFail(t *testing.T) {
	b, _ := open(t)
	twice := onnxmodel.Relu(tensor.FP32, "b", "n")
	twice.Graph.Outputs[0].Dims = onnxmodel.Dims("c", "n")
	twice.Graph.Nodes[0] = onnxmodel.Node{
		Op: "Concat", Inputs: []string{"INPUT0", "INPUT0"}, Outputs: []string{"OUTPUT0"},
		Attrs: []onnxmodel.Attr{{Name: "axis", Value: int64(0)}},
	}
	x := func(shape ...int64) value {
		n, _ := tensor.Shape(shape).Elements()
		ones := make([]float32, n)
		for i := range ones {
			ones[i] = 1
		}
		return value{"INPUT0", tensor.FP32, shape, pack(ones)}
	}
	tests := []struct {
		name string
		in   backend.Instance
		r    *infer.Request
		want string
	}{
		{
			"more rows than the batch", instance(t, b, twice, config(8, ios(io("INPUT0", tensor.FP32, -1)), ios(io("OUTPUT0", tensor.FP32, -1)))),
			request(2, x(2, 3)),
			"output 'OUTPUT0' of model 'm': failed to split the output tensor in responses: expected batch size of 2 in model output, got 4",
		},
		{
			"another size than configured", instance(t, b, shapeless(), config(0, ios(io("INPUT0", tensor.FP32, -1), io("INPUT1", tensor.Int64, -1)), ios(io("OUTPUT0", tensor.FP32, 1, 7000)))),
			request(1, x(7001), value{"INPUT1", tensor.Int64, tensor.Shape{2}, pack([]int64{1, 7001})}),
			"output 'OUTPUT0' of model 'm': unexpected shape: expected [1,7000], got [1,7001]",
		},
		{
			"a scalar where dimensions are configured", instance(t, b, shapeless(), config(0, ios(io("INPUT0", tensor.FP32, -1), io("INPUT1", tensor.Int64, -1)), ios(io("OUTPUT0", tensor.FP32, 2)))),
			request(1, x(1), value{"INPUT1", tensor.Int64, tensor.Shape{0}, ""}),
			"output 'OUTPUT0' of model 'm': unexpected shape: expected [2], got []",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := failure{errs.ExecutionFailed, tt.want}
			if d := cmp.Diff(want, failed(t, run(t, tt.in, tt.r).response(0))); d != "" {
				t.Error(d)
			}
		})
	}
}

func count(t *testing.T, b *onnxruntime.Backend) backend.Instance {
	return instance(t, b, onnxmodel.Count(), config(0,
		ios(io("INPUT0", tensor.Int64, 1)), ios(io("OUTPUT0", tensor.Int64, 1))))
}

func countTo(n int64) *infer.Request {
	return request(1, value{"INPUT0", tensor.Int64, tensor.Shape{1}, pack(n)})
}

func TestCancelEndsARunAndTheNextIsRight(t *testing.T) {
	b, _ := open(t)
	in := count(t, b)
	for range 3 {
		long := newBatch(t, countTo(1<<40))
		done := make(chan struct{})
		go func() { in.Execute(long); close(done) }()
		<-long.inputDone // the run begins right after this, or is about to
		long.cancel()
		<-done
		if d := cmp.Diff(failure{errs.Canceled, ""}, failed(t, long.response(0))); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff(pack(int64(5)), outputs(t, run(t, in, countTo(5)).response(0))[0].Data); d != "" {
			t.Errorf("the run after a canceled one: %s", d)
		}
	}
}

func TestBatchCanceledBeforeItsStartIsNotRun(t *testing.T) {
	b, _ := open(t)
	in := count(t, b)
	gone := newBatch(t, countTo(1<<40), countTo(1<<40))
	gone.cancel()
	in.Execute(gone)
	for i := range 2 {
		if d := cmp.Diff(failure{errs.Canceled, ""}, failed(t, gone.response(i))); d != "" {
			t.Error(d)
		}
	}
	if d := cmp.Diff(pack(int64(3)), outputs(t, run(t, in, countTo(3)).response(0))[0].Data); d != "" {
		t.Error(d)
	}
}

// A stop may race with the end of its batch and arrive when the next one
// runs, whose client has not gone away.
func TestStopThatComesLateDoesNotFailTheNextBatch(t *testing.T) {
	b, _ := open(t)
	in := count(t, b)
	first := run(t, in, countTo(1))
	outputs(t, first.response(0))
	second := newBatch(t, countTo(1000))
	second.onInput = first.stop
	in.Execute(second)
	if d := cmp.Diff(pack(int64(1000)), outputs(t, second.response(0))[0].Data); d != "" {
		t.Error(d)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	first.stop() // must not touch what Close has freed
}

// The shim walks the bytes of strings; whatever they are, they come back
// unchanged or are refused.
func FuzzStrings(f *testing.F) {
	b, _ := open(f)
	in := instance(f, b, onnxmodel.Identity(tensor.Bytes, "n"), config(0,
		ios(io("INPUT0", tensor.Bytes, -1)), ios(io("OUTPUT0", tensor.Bytes, -1))))
	f.Add(int64(2), []byte(text("a", "")))
	f.Add(int64(1), []byte("\xff\xff\xff\xff"))
	f.Add(int64(1)<<40, []byte(text("a")))
	f.Fuzz(func(t *testing.T, n int64, data []byte) {
		r := run(t, in, request(1, value{"INPUT0", tensor.Bytes, tensor.Shape{n}, string(data)})).response(0)
		if r.Err != nil {
			return
		}
		if got := outputs(t, r); got[0].Data != string(data) || got[0].Shape[0] != n {
			t.Errorf("%d elements in %q came back as %q", n, data, got[0].Data)
		}
	})
}
