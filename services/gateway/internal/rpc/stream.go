package rpc

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
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
	message mem.Buffer
	err     error
}

// stream handles ModelStreamInfer: requests run concurrently, and their
// responses are sent in the order of the requests.
func (s *service) stream(_ any, stream grpc.ServerStream) error {
	ctx, cancel := context.WithCancel(stream.Context())
	queue := make(chan chan answer, streamDepth)
	var ended error // written before queue is closed, read after
	go func() {
		defer close(queue)
		ended = s.receive(ctx, stream, queue)
	}()
	err := send(stream, queue)
	cancel()
	if err != nil {
		// The receiver may be waiting for a message; it ends with the stream,
		// which ends when this returns.
		go discard(queue)
		return s.status(inference.GRPCInferenceService_ModelStreamInfer_FullMethodName, err)
	}
	return s.status(inference.GRPCInferenceService_ModelStreamInfer_FullMethodName, ended)
}

// receive starts the stream's requests until its client has sent the last.
func (s *service) receive(ctx context.Context, stream grpc.ServerStream, queue chan<- chan answer) error {
	strict := slices.Contains(metadata.ValueFromIncomingContext(ctx, strictHeader), "true")
	for {
		in := s.takeRequest()
		if err := stream.RecvMsg(in); err != nil {
			s.putRequest(in)
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		slot := make(chan answer, 1)
		select {
		case queue <- slot:
		case <-ctx.Done():
			s.putRequest(in)
			return ctx.Err()
		}
		go func() {
			defer s.putRequest(in)
			slot <- s.answer(ctx, in, strict)
		}()
	}
}

func send(stream grpc.ServerStream, queue <-chan chan answer) error {
	for slot := range queue {
		a := <-slot
		if a.err != nil {
			return a.err
		}
		if err := stream.SendMsg(a.message); err != nil {
			return err
		}
	}
	return nil
}

func discard(queue <-chan chan answer) {
	for slot := range queue {
		if a := <-slot; a.message != nil {
			a.message.Free()
		}
	}
}

// answer runs one request of a stream.
func (s *service) answer(ctx context.Context, in *wire.Request, strict bool) answer {
	item := wire.StreamItem{Response: wire.Response{ID: in.ID}}
	response, err := s.inferStreamed(ctx, in, &item)
	var message mem.Buffer
	if err == nil {
		defer response.Release()
		message, err = s.encode(&item)
	}
	if err == nil || strict {
		return answer{message: message, err: err}
	}
	item.Error = s.visible(inference.GRPCInferenceService_ModelStreamInfer_FullMethodName, err).Msg
	item.Parameters, item.Outputs = nil, nil
	message, err = s.encode(&item)
	return answer{message: message, err: err}
}

// inferStreamed runs the request and describes its answer in item, which
// shares the response's outputs. From execution on an error names the model.
func (s *service) inferStreamed(ctx context.Context, in *wire.Request, item *wire.StreamItem) (*infer.Response, error) {
	v, err := s.engine.Snapshot().Resolve(in.Model, in.Version)
	if err != nil {
		return nil, err
	}
	if v.Config.Decoupled {
		return nil, errs.New(errs.Unsupported, "model '%s' is decoupled, which this server does not support", in.Model).WithModel(in.Model)
	}
	r, err := s.request(ctx, v, in)
	if err != nil {
		return nil, err
	}
	item.Model, item.Version = v.Ref.Name, strconv.FormatInt(v.Ref.Version, 10)
	response, err := s.engine.Infer(ctx, v, r)
	if err != nil {
		return nil, err
	}
	item.Outputs = response.Outputs
	item.Parameters = append(slices.Clone(response.Parameters), infer.Parameter{Key: finalKey, Value: true})
	return response, nil
}
