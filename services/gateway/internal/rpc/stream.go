package rpc

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc/transport"
)

// streamDepth is how many requests of one stream may be in flight. At that number the server stops reading the
// stream.
const streamDepth = 256

// finalKey is the response parameter that marks a request's last response.
const finalKey = reservedPrefix + "final_response"

// strictHeader requests that the first error end the stream with its status.
const strictHeader = "triton_grpc_error"

// stream is one ModelStreamInfer call. Its requests are decoded and submitted one after another, in the order
// of their arrival. Models that give one response respond in the order of the requests; the responses of
// decoupled models are sent as they arrive.
type stream struct {
	grpc.ServerStream
	service *service
	ledger  *transport.Stream
	budget  *memory.Budget // the caller's budget
	strict  bool
	ctx     context.Context
	cancel  context.CancelCauseFunc // with the error that broke the stream
	slots   chan struct{}           // one for each request in flight
	running sync.WaitGroup

	received chan *call // closed at the end
	end      error      // why it ended; nil after the client's last request; read it only after received is closed

	sending sync.Mutex
}

// streamInfer handles ModelStreamInfer.
func (s *service) streamInfer(_ any, server grpc.ServerStream) error {
	const method = inference.GRPCInferenceService_ModelStreamInfer_FullMethodName
	ctx := server.Context()
	c := path.Call{API: core.InferenceAPI, Method: method, Caller: incoming{ctx}, Client: clientOf(ctx)}
	err := s.path.Do(ctx, &c, func() error {
		c.Client = nil // its requests report to the client instead
		x := &stream{
			ServerStream: server, service: s, ledger: &ticketOf(ctx).ledger, budget: c.Budget(),
			strict: slices.Contains(metadata.ValueFromIncomingContext(ctx, strictHeader), "true"),
			slots:  make(chan struct{}, streamDepth), received: make(chan *call),
		}
		return x.run(ctx)
	})
	return s.status(method, err)
}

func (x *stream) run(ctx context.Context) error {
	x.service.compressed(ctx)
	early, end := withEarlyEnd(ctx)
	defer end()
	x.ctx, x.cancel = context.WithCancelCause(early)
	defer x.cancel(nil)
	go x.receive()
	ordered := make(chan *call, streamDepth)
	x.running.Go(func() {
		for c := range ordered {
			x.finish(c)
		}
	})
	stopped := x.start(ordered)
	close(ordered)
	x.running.Wait()
	switch {
	case x.ctx.Err() != nil:
		return context.Cause(x.ctx)
	case stopped:
		return errs.New(errs.Draining, "the server stops, and has answered all requests of the stream")
	}
	return x.end
}

// receive reads the requests in a separate goroutine, which ends with the client's last request or with the
// stream.
func (x *stream) receive() {
	defer close(x.received)
	defer func() {
		if v := recover(); v != nil {
			x.end = path.Panicked(v)
		}
	}()
	for {
		c := x.service.takeCall()
		c.Account.Open(x.budget)
		c.Received, c.received.ctx, c.received.ledger, c.Client = true, x.ctx, x.ledger, x.ledger
		x.ledger.Await(false)
		if err := x.RecvMsg(&c.received); err != nil { // a refusal concerns the request, not the stream
			x.service.putCall(c)
			if !errors.Is(err, io.EOF) {
				x.end = err
			}
			return
		}
		select {
		case x.received <- c:
		case <-x.ctx.Done():
			x.service.putCall(c)
			return
		}
	}
}

// start submits the received requests until they end or the stream breaks. It reports whether it stopped
// because the server has drained.
func (x *stream) start(ordered chan<- *call) (stopped bool) {
	for {
		select {
		case x.slots <- struct{}{}:
		case <-x.ctx.Done():
			return false
		}
		var c *call
		select {
		case c = <-x.received:
		case <-x.ctx.Done():
		case <-x.service.gateway.Drained():
			return true
		}
		if c == nil {
			return false
		}
		c.stream, c.Single, c.Method = x, "", inference.GRPCInferenceService_ModelStreamInfer_FullMethodName
		c.err = x.service.path.Start(x.ctx, &c.Call)
		if c.err == nil && c.Target.Config.Decoupled {
			x.running.Go(func() { x.finish(c) })
			continue
		}
		ordered <- c // buffers all requests in flight
	}
}

// finish sends the responses of a request, or its error.
func (x *stream) finish(c *call) {
	defer func() {
		if v := recover(); v != nil {
			x.cancel(path.Panicked(v))
		}
		x.service.putCall(c)
		<-x.slots
	}()
	if c.err == nil {
		c.err = x.service.path.Finish(&c.Call)
	}
	if c.err != nil && x.ctx.Err() == nil {
		x.fail(c)
	}
}

// send sends a response.
func (x *stream) send(c *call, final bool) error {
	if x.ctx.Err() != nil { // nobody would receive it
		return gone(x.ctx.Err())
	}
	if final && len(c.item.Outputs) == 0 && c.Target.Config.Decoupled { // only the end
		c.item.Version = c.in.Version
	}
	c.item.Parameters = append(slices.Clone(c.item.Parameters), infer.Parameter{Key: finalKey, Value: final})
	message, err := c.encode(x.ctx, &c.item)
	if err != nil {
		return err
	}
	return x.write(message)
}

// fail sends the error of a request. In strict mode the error ends the stream. In both modes, so does an error
// that says that the stream's deadline is too short.
func (x *stream) fail(c *call) {
	if x.strict || errs.Of(c.err) == errs.DeadlineTooShort {
		x.cancel(c.err)
		return
	}
	e := x.service.path.Visible(c.Method, c.err)
	c.item.Error, c.item.ID, c.item.Parameters, c.item.Outputs = e.Msg, c.in.ID, nil, nil
	if c.item.Model, c.item.Version = "", ""; c.decoded && !atAdmission(e.Reason) {
		c.item.Model, c.item.Version = c.in.Model, c.in.Version
		c.item.Parameters = []infer.Parameter{{Key: finalKey, Value: true}}
	}
	message, err := c.encode(x.ctx, &c.item)
	if err != nil {
		x.cancel(err)
		return
	}
	_ = x.write(message)
}

// write sends a message. If that fails, the stream is broken. A message that gRPC compresses stays charged
// until gRPC takes the next one.
func (x *stream) write(message mem.BufferSlice) error {
	message.Ref()
	defer message.Free()
	x.sending.Lock()
	defer x.sending.Unlock()
	if err := x.SendMsg(message); err != nil {
		x.cancel(err)
		return gone(err)
	}
	return nil
}

func gone(err error) error { return errs.Wrap(errs.Canceled, err, "") }

// atAdmission reports whether requests with this reason are refused before they are queued. As in Triton,
// responses to these name no model.
func atAdmission(reason errs.Reason) bool {
	switch reason {
	case errs.MaxQueueSize, errs.QueueFull, errs.DeadlineUnmeetable, errs.RegionNotFound:
		return true
	}
	return reason.GRPC() == uint32(codes.InvalidArgument) && reason != errs.ModelRefused
}
