package rpc_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
)

func TestStreamRespondsInTheOrderOfTheRequests(t *testing.T) {
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
			t.Errorf("response %d is %q, id %q, parameters %v", i, item.ErrorMessage, r.Id, r.Parameters)
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
	// When another call has its response the server has read all of the stream.
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
			t.Fatalf("response %d is for request %s", i, item.InferResponse.Id)
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

// A decoupled model whose backend responds once says so with its response, also
// to a client that takes empty last ones.
func TestStreamRespondsForADecoupledModel(t *testing.T) {
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

func TestStreamNamesNoModelForWhatWasRejectedAtAdmission(t *testing.T) {
	for reason, model := range map[errs.Reason]string{errs.MaxQueueSize: "", errs.DeadlineUnmeetable: "", errs.QueueTimeout: "add_sub", errs.ModelRefused: "add_sub"} {
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
		if final := item.GetInferResponse().GetParameters()["triton_final_response"].GetBoolParam(); final != (model != "") {
			t.Errorf("%s: final %v", reason, final)
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

func TestStreamCanceledReleasesEverything(t *testing.T) {
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

// Sequences over a stream rely on it.
func TestStreamSubmitsInTheOrderOfTheRequests(t *testing.T) {
	s := serve(t)
	s.models.set(func() { s.models.hold = true })
	stream, err := s.client.ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const requests = 100
	for i := range requests {
		m := addSub(1 + 300*(i%2)) // of which every other takes longer to decode
		m.Id = strconv.Itoa(i)
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	for i := range requests {
		if r := <-s.models.submitted; r.ID != strconv.Itoa(i) {
			t.Errorf("request %d is submitted as %s", i, r.ID)
		}
	}
	s.models.release()
	for range requests {
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
}

// A decoupled model gives any number of responses, which come as they are made,
// whatever request was sent before theirs.
func TestStreamSendsResponsesOfDecoupledModelsAsTheyCome(t *testing.T) {
	s := serve(t)
	s.models.set(func() { s.models.hold = true })
	stream, err := s.client.ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send := func(id, model string, empty bool) infer.Request {
		m := addSub(1)
		m.Id, m.ModelName = id, model
		if empty {
			m.Parameters = map[string]*inference.InferParameter{
				"triton_enable_empty_final_response": {ParameterChoice: &inference.InferParameter_BoolParam{BoolParam: true}},
			}
		}
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
		return <-s.models.submitted
	}
	expect := func(id string, outputs int, final bool) {
		t.Helper()
		item, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		r := item.InferResponse
		flag, ok := r.Parameters["triton_final_response"]
		if item.ErrorMessage != "" || r.Id != id || len(r.Outputs) != outputs || !ok || flag.GetBoolParam() != final {
			t.Errorf("got %v, want %d outputs for %s, final %t", item, outputs, id, final)
		}
	}
	plain, quiet, ended := send("plain", "add_sub", false), send("quiet", "tokens", false), send("ended", "tokens", true)
	s.models.part(ended)
	expect("ended", 2, false)
	s.models.part(quiet)
	expect("quiet", 2, false)
	s.models.part(ended)
	expect("ended", 2, false)
	s.models.end(quiet) // is not told
	s.models.end(ended)
	expect("ended", 0, true)
	s.models.release()
	expect("plain", 2, true)
	_ = plain
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ends with %v", err)
	}
}

// Responses that a client does not read count in the budget; what exceeds it is
// refused, and when the client goes all of it is there again at once.
func TestUnreadResponsesOfAStreamCount(t *testing.T) {
	const rows, requests = 4096, 100 // each output has 256 KiB
	budget, submitted := memory.NewBudget(20<<20), make(chan struct{}, requests)
	stages := path.Stages()
	for i := range stages {
		if run := stages[i].Run; stages[i].Name == "receive" {
			stages[i].Run = func(c *path.Call) error {
				submitted <- struct{}{} // but for the last, which does not matter
				return run(c)
			}
		}
	}
	s := serveWith(t, rpc.Options{Options: path.Options{Budget: budget, Stages: stages}})
	stream, err := s.client.ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range requests {
		if err := stream.Send(addSub(rows)); err != nil {
			t.Fatal(err)
		}
		<-submitted
	}
	if held := budget.Reserved(); held < 19<<20 || held > 20<<20 {
		t.Errorf("%d bytes are held by responses of %d", held, requests*2*64*rows)
	}
	full := 0
	for range requests {
		item, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(item.ErrorMessage, "would exceed the maximum") {
			full++
		}
	}
	if least := requests - 20<<20/(2*64*rows) - 10; full < least { // less those that the client's window takes
		t.Errorf("%d of %d requests were refused, want %d at the least", full, requests, least)
	}
}

// Finished responses that were not sent are released when the stream ends, and not
// by a collection some time.
func TestStreamCanceledReleasesFinishedResponsesAtOnce(t *testing.T) {
	budget := memory.NewBudget(0)
	s := serveWith(t, rpc.Options{Options: path.Options{Budget: budget}})
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := s.client.ModelStreamInfer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	const rows, requests = 4096, 40
	for range requests {
		if err := stream.Send(addSub(rows)); err != nil {
			t.Fatal(err)
		}
		<-s.models.submitted // and responded to
	}
	cancel()
	s.server.GracefulStop() // returns when the handler has
	// What gRPC was sending it may drop without returning it: one message.
	if held := s.pool.Stats().InUse; held > 2*2*64*rows*5/4 {
		t.Errorf("%d bytes are in use of %d", held, requests*2*64*rows)
	}
	for budget.Reserved() != 0 || s.pool.Stats().InUse != 0 { // as it must be at last
		runtime.GC()
	}
}

func TestAPanicEndsOneRequestOfAStream(t *testing.T) {
	stages := path.Stages()
	for i := range stages {
		if run := stages[i].Run; stages[i].Name == "check" {
			stages[i].Run = func(c *path.Call) error {
				if c.ID == "bad" {
					panic("a bug")
				}
				return run(c)
			}
		}
	}
	s := serveWith(t, rpc.Options{Options: path.Options{Stages: stages}})
	stream, err := s.client.ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{"bad": "internal error", "good": ""} {
		m := addSub(1)
		m.Id = id
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
		if item, err := stream.Recv(); err != nil || item.ErrorMessage != want || item.InferResponse.Id != id {
			t.Errorf("%s: %v, %v", id, item, err)
		}
	}
	bad := addSub(1)
	bad.Id = "bad"
	if _, err := s.client.ModelInfer(t.Context(), bad); status.Code(err) != codes.Internal {
		t.Errorf("got %v, want INTERNAL", err)
	}
	for range 2 {
		if logged := <-s.logged; !strings.Contains(logged.Error(), "a bug") || !strings.Contains(logged.Error(), "stream_test.go") {
			t.Errorf("the log has %v, without the panic's stack", logged)
		}
	}
}

// A client that keeps a stream without requests does not hold up the server's end.
func TestIdleStreamEndsWhenTheServerHasDrained(t *testing.T) {
	s := serve(t)
	stream, err := s.client.ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(addSub(300)); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	if err := s.gateway.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ends with %v, want UNAVAILABLE", err)
	}
}
