package rpc

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc/wire"
)

// streamDepth is how many requests of one stream may be in work at once. At
// this many the server stops reading the stream.
const streamDepth = 256

// finalKey is the response parameter that marks a request's last response.
const finalKey = reservedPrefix + "final_response"

// strictHeader asks that the first error end the stream with its status.
const strictHeader = "triton_grpc_error"

// answer is what a request of a stream came to: a message to send, or in
// strict mode the error that ends the stream.
type answer struct {
	message mem.BufferSlice
	err     error
}

// stream handles ModelStreamInfer: requests run concurrently, and their
// responses are sent in the order of the requests.
func (s *service) stream(_ any, stream grpc.ServerStream) error {
	const method = inference.GRPCInferenceService_ModelStreamInfer_FullMethodName
	if err := s.allow(stream.Context(), core.InferenceAPI); err != nil {
		return s.status(method, err)
	}
	s.compressed(stream.Context())
	ctx, cancel := context.WithCancel(stream.Context())
	r := receiver{service: s, requests: make(chan *wire.Request)}
	go r.run(ctx, stream)
	var running sync.WaitGroup
	err := s.exchange(ctx, stream, &r, &running)
	cancel()
	running.Wait()
	return s.status(method, err)
}

// receiver reads a stream's requests in a goroutine of its own, which ends
// with the client's last request or with the stream.
type receiver struct {
	service  *service
	requests chan *wire.Request // closed at the end
	err      error              // why it ended; nil after the client's last request; read after requests is closed
}

func (r *receiver) run(ctx context.Context, stream grpc.ServerStream) {
	defer close(r.requests)
	for {
		in := r.service.takeRequest()
		if err := stream.RecvMsg(in); err != nil {
			r.service.putRequest(in)
			if !errors.Is(err, io.EOF) {
				r.err = err
			}
			return
		}
		select {
		case r.requests <- in:
		case <-ctx.Done():
			r.service.putRequest(in)
			r.err = ctx.Err()
			return
		}
	}
}

// exchange starts what is received and sends what is answered, until both are
// at their end or one fails.
func (s *service) exchange(ctx context.Context, stream grpc.ServerStream, r *receiver, running *sync.WaitGroup) error {
	strict := slices.Contains(metadata.ValueFromIncomingContext(ctx, strictHeader), "true")
	var queue []chan answer // of the requests in work, in their order
	for requests := r.requests; requests != nil || len(queue) > 0; {
		receive, head := requests, chan answer(nil)
		if len(queue) > 0 {
			head = queue[0]
		}
		if len(queue) >= streamDepth {
			receive = nil
		}
		select {
		case in, ok := <-receive:
			if !ok {
				requests = nil
				continue
			}
			slot := make(chan answer, 1)
			queue = append(queue, slot)
			running.Go(func() {
				defer s.putRequest(in)
				slot <- s.answer(ctx, in, strict)
			})
		case a := <-head:
			queue = queue[1:]
			if err := sendAnswer(stream, a); err != nil {
				return err
			}
		}
	}
	return r.err
}

func sendAnswer(stream grpc.ServerStream, a answer) error {
	if a.err != nil {
		return a.err
	}
	return stream.SendMsg(a.message)
}

// answer runs one request of a stream.
func (s *service) answer(ctx context.Context, in *wire.Request, strict bool) answer {
	item := wire.StreamItem{Response: wire.Response{ID: in.ID}}
	response, err := s.inferStreamed(ctx, in, &item)
	var message mem.BufferSlice
	if err == nil {
		defer response.Release()
		message, err = s.encodeAnswer(&item)
	}
	if err == nil || strict {
		return answer{message: message, err: err}
	}
	item.Error = s.visible(inference.GRPCInferenceService_ModelStreamInfer_FullMethodName, err).Msg
	if atTheDoor(errs.Of(err)) {
		item.Model, item.Version = "", ""
	}
	item.Parameters, item.Outputs = nil, nil
	message, err = s.encode(&item)
	return answer{message: message, err: err}
}

// atTheDoor reports whether requests are refused for the reason before they
// are queued. The answers to these name no model, as Triton's do not.
func atTheDoor(reason errs.Reason) bool {
	switch reason {
	case errs.MaxQueueSize, errs.QueueFull, errs.DeadlineUnmeetable:
		return true
	}
	return reason.GRPC() == uint32(codes.InvalidArgument)
}

// inferStreamed runs the request and describes its answer in item, which
// shares the response's outputs.
func (s *service) inferStreamed(ctx context.Context, in *wire.Request, item *wire.StreamItem) (*infer.Response, error) {
	if err := s.budget.Take(in.Bytes); err != nil {
		return nil, err
	}
	defer s.budget.Give(in.Bytes)
	v, err := s.engine.Snapshot().Resolve(in.Model, in.Version)
	if err != nil {
		return nil, err
	}
	r, classes, err := s.request(ctx, v, in)
	if err != nil {
		return nil, err
	}
	item.Model, item.Version = v.Ref.Name, strconv.FormatInt(v.Ref.Version, 10)
	response, err := s.execute(ctx, v, r, classes)
	if err != nil {
		return nil, err
	}
	item.Outputs = response.Outputs
	item.Parameters = append(slices.Clone(response.Parameters), infer.Parameter{Key: finalKey, Value: true})
	return response, nil
}
