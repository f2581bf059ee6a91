package rpc_test

import (
	"context"
	"errors"
	"io"
	"strconv"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nereid-serving/nereid/libs/errs"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

func TestStreamAnswersInTheOrderOfTheRequests(t *testing.T) {
	s := serve(t)
	s.models.set(func() { s.models.hold = true })
	stream, err := s.client.ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const requests = 20
	for i := range requests {
		m := addSub(300)
		m.Id = strconv.Itoa(i)
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for range requests {
		<-s.models.submitted // all run at once
	}
	s.models.release() // the last first
	for i := range requests {
		item, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		r := item.InferResponse
		if item.ErrorMessage != "" || r.Id != strconv.Itoa(i) || !r.Parameters["triton_final_response"].GetBoolParam() {
			t.Errorf("answer %d is %q, id %q, parameters %v", i, item.ErrorMessage, r.Id, r.Parameters)
		}
		checkAddSub(t, 300, r)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ends with %v", err)
	}
}

// More requests than may be in work at once wait on the wire.
func TestStreamBoundsTheRequestsInWork(t *testing.T) {
	s := serve(t)
	s.models.set(func() { s.models.hold = true })
	stream, err := s.client.ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const requests, depth = 300, 256
	sent := make(chan error, 1)
	go func() {
		var err error
		for i := range requests {
			m := addSub(1)
			m.Id = strconv.Itoa(i)
			err = errors.Join(err, stream.Send(m))
		}
		sent <- errors.Join(err, stream.CloseSend())
	}()
	for range depth {
		<-s.models.submitted
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	// By the answer to another call the server has read all of the stream.
	if _, err := s.client.ServerLive(t.Context(), &inference.ServerLiveRequest{}); err != nil {
		t.Fatal(err)
	}
	if n := s.gateway.InFlight(); n != depth {
		t.Errorf("%d requests are in work, want %d", n, depth)
	}
	s.models.set(func() { s.models.hold = false })
	s.models.release()
	for i := range requests {
		item, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if item.InferResponse.Id != strconv.Itoa(i) {
			t.Fatalf("answer %d is for request %s", i, item.InferResponse.Id)
		}
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ends with %v", err)
	}
}

func TestStreamGoesOnAfterAnError(t *testing.T) {
	s := serve(t)
	stream, err := s.client.ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	unknown, bad := addSub(1), addSub(1)
	unknown.ModelName, bad.Id = "none", "bad"
	bad.Inputs[0].Datatype = "FP32"
	for _, m := range []*inference.ModelInferRequest{unknown, bad, addSub(1)} {
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []struct{ text, id, model string }{
		{"Request for unknown model: 'none' is not found", "r1", ""},
		{"[request id: bad] inference input 'INPUT0' data-type is 'FP32', but model 'add_sub' expects 'INT32'", "bad", ""},
		{"", "r1", "add_sub"},
	} {
		item, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if r := item.InferResponse; item.ErrorMessage != want.text || r.Id != want.id || r.ModelName != want.model {
			t.Errorf("got %q, id %q, model %q, want %+v", item.ErrorMessage, r.Id, r.ModelName, want)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ends with %v", err)
	}
}

// A decoupled model whose backend answers once says so with its response, also
// to a client that takes empty last ones.
func TestStreamAnswersForADecoupledModel(t *testing.T) {
	s := serve(t)
	stream, err := s.client.ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, empty := range []bool{false, true} {
		m := addSub(300)
		m.ModelName = "tokens"
		m.Parameters = map[string]*inference.InferParameter{
			"triton_enable_empty_final_response": {ParameterChoice: &inference.InferParameter_BoolParam{BoolParam: empty}},
		}
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
		item, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		r := item.InferResponse
		if item.ErrorMessage != "" || r.ModelName != "tokens" || !r.Parameters["triton_final_response"].GetBoolParam() || len(r.Outputs) != 2 {
			t.Errorf("empty last ones %v: %q, %s with %d outputs, parameters %v", empty, item.ErrorMessage, r.ModelName, len(r.Outputs), r.Parameters)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ends with %v", err)
	}
}

func TestStreamNamesNoModelForWhatWasRefusedAtTheDoor(t *testing.T) {
	for reason, model := range map[errs.Reason]string{errs.MaxQueueSize: "", errs.DeadlineUnmeetable: "", errs.QueueTimeout: "add_sub"} {
		s := serve(t)
		stream, err := s.client.ModelStreamInfer(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.models.set(func() { s.models.hold = true })
		if err := stream.Send(addSub(1)); err != nil {
			t.Fatal(err)
		}
		<-s.models.submitted
		s.models.fail(errs.New(reason, "no"))
		item, err := stream.Recv()
		if err != nil || item.ErrorMessage != "no" || item.InferResponse.Id != "r1" || item.InferResponse.ModelName != model {
			t.Errorf("%s: %v, %v", reason, item, err)
		}
	}
}

func TestStreamInStrictModeEndsWithTheFirstError(t *testing.T) {
	s := serve(t)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "triton_grpc_error", "true")
	stream, err := s.client.ModelStreamInfer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s.models.set(func() { s.models.hold = true })
	for range 3 {
		if err := stream.Send(addSub(300)); err != nil {
			t.Fatal(err)
		}
		<-s.models.submitted
	}
	s.models.fail(errs.New(errs.QueueFull, "full"))
	if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted || status.Convert(err).Message() != "full" {
		t.Errorf("the stream ends with %v", err)
	}
	// serve's cleanup checks that the other two are cancelled and released.
}

func TestStreamCancelledReleasesEverything(t *testing.T) {
	s := serve(t)
	s.models.set(func() { s.models.hold = true })
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := s.client.ModelStreamInfer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := stream.Send(addSub(300)); err != nil {
			t.Fatal(err)
		}
		<-s.models.submitted
	}
	cancel()
	if _, err := stream.Recv(); status.Code(err) != codes.Canceled {
		t.Errorf("the stream ends with %v", err)
	}
	// serve's cleanup checks that no request and no buffer is left.
}
