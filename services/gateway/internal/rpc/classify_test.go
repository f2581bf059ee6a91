package rpc_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nereid-serving/nereid/libs/tensor"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// classified is addSub that asks for the best classes of OUTPUT1, and for
// OUTPUT0 as it is.
func classified(rows int, classes int64) *inference.ModelInferRequest {
	m := addSub(rows)
	m.Outputs = []*inference.ModelInferRequest_InferRequestedOutputTensor{
		{Name: "OUTPUT0"},
		{Name: "OUTPUT1", Parameters: map[string]*inference.InferParameter{
			"classification": {ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: classes}},
			"binary_data":    {ParameterChoice: &inference.InferParameter_BoolParam{BoolParam: true}},
		}},
	}
	return m
}

// serveLabeled is serve with labels for the first classes of OUTPUT1, whose
// scores ascend.
func serveLabeled(t *testing.T, labels ...string) *server {
	t.Helper()
	s := serve(t)
	models := repository()
	config := models[0].Versions[0].Config
	models[0].Versions[0].Config = config.WithLabels(func(string) []string { return labels })
	s.gateway.Update(core.NewSnapshot(2, true, models))
	return s
}

func checkClasses(t *testing.T, r *inference.ModelInferResponse, shape []int64, want []string) {
	t.Helper()
	if len(r.GetOutputs()) != 2 || len(r.RawOutputContents) != 2 {
		t.Fatalf("the response is %v", r)
	}
	if out := r.Outputs[0]; out.Datatype != "INT32" || len(r.RawOutputContents[0]) != 64*int(shape[0]) {
		t.Errorf("OUTPUT0 is %v of %d bytes", out, len(r.RawOutputContents[0]))
	}
	out := r.Outputs[1]
	if d := cmp.Diff(shape, out.Shape); out.Datatype != "BYTES" || d != "" || out.Contents != nil || out.Parameters != nil {
		t.Errorf("OUTPUT1 is %v", out)
	}
	var got []string
	for data := r.RawOutputContents[1]; len(data) > 0; {
		element, rest, err := tensor.CutBytes(data)
		if err != nil {
			t.Fatal(err)
		}
		got, data = append(got, string(element)), rest
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestOutputsAreClassified(t *testing.T) {
	s := serveLabeled(t, "zero", "one")
	r, err := s.client.ModelInfer(t.Context(), classified(2, 2))
	if err != nil {
		t.Fatal(err)
	}
	checkClasses(t, r, []int64{2, 2}, []string{"14:15", "13:14", "30:15", "29:14"})
	if r, err = s.client.ModelInfer(t.Context(), classified(1, 99)); err != nil {
		t.Fatal(err)
	}
	checkClasses(t, r, []int64{1, 16}, []string{
		"14:15", "13:14", "12:13", "11:12", "10:11", "9:10", "8:9", "7:8", "6:7", "5:6", "4:5", "3:4", "2:3", "1:2", "0:1:one", "-1:0:zero",
	})
}

func TestOutputsOfAStreamAreClassified(t *testing.T) {
	s := serveLabeled(t)
	stream, err := s.client.ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(classified(1, 1)); err != nil {
		t.Fatal(err)
	}
	item, err := stream.Recv()
	if err != nil || item.ErrorMessage != "" {
		t.Fatal(item, err)
	}
	checkClasses(t, item.InferResponse, []int64{1, 1}, []string{"14:15"})
}

func TestClassesThatCannotBeAreRefused(t *testing.T) {
	s := serve(t)
	models := repository()
	models[0].Versions[0].Config.Outputs[1].Datatype = tensor.FP16
	s.gateway.Update(core.NewSnapshot(2, true, models))
	_, err := s.client.ModelInfer(t.Context(), classified(1, 1))
	const want = "class result not available for output due to unsupported type 'FP16'"
	if st := status.Convert(err); st.Code() != codes.InvalidArgument || st.Message() != want {
		t.Errorf("got %v, want %q", err, want)
	}
	if n := len(s.models.submitted); n != 0 {
		t.Errorf("%d requests were submitted", n)
	}
}

// Classes can be too large only once there is a response, whose memory is released
// all the same.
func TestResponseThatCannotBeClassifiedIsAnError(t *testing.T) {
	s := serve(t)
	m := classified(100_001, 1)
	m.Outputs[0].Name, m.Outputs[1].Name = "OUTPUT1", "OUTPUT0"
	models := repository()
	config := models[0].Versions[0].Config
	config.MaxBatchSize = 0 // all rows are one
	config.Inputs[0].Dims, config.Inputs[1].Dims = tensor.Shape{-1, 16}, tensor.Shape{-1, 16}
	s.gateway.Update(core.NewSnapshot(2, true, models))
	_, err := s.client.ModelInfer(t.Context(), m)
	const want = "classification output tensor too large"
	if st := status.Convert(err); st.Code() != codes.InvalidArgument || st.Message() != want {
		t.Errorf("got %v, want %q", err, want)
	}
}
