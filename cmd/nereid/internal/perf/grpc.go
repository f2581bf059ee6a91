package perf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/client"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

const (
	methodInfer  = "/inference.GRPCInferenceService/ModelInfer"
	methodStream = "/inference.GRPCInferenceService/ModelStreamInfer"
	// finalParameter marks the last response to a request of a stream.
	finalParameter = "triton_final_response"
	// wantFinal asks for that mark in a message of its own where a decoupled model
	// has no more responses.
	wantFinal = "triton_enable_empty_final_response"
)

// grpcSender sends messages that were encoded before.
type grpcSender struct {
	target      *Target
	metadata    []metadata.MD // of each class
	connections []*grpc.ClientConn
	next        atomic.Uint64

	mu   sync.Mutex
	idle map[int][]*grpcStream // open streams by class; guarded by mu
	ctx  context.Context       //nolint:containedctx // of the streams, which outlive a request
	stop context.CancelFunc
}

// grpcStream belongs to one request at a time.
type grpcStream struct {
	grpc.ClientStream
	cancel context.CancelFunc
}

func newGRPCSender(t *Target, classes []Class) (*grpcSender, error) {
	s := &grpcSender{target: t, idle: make(map[int][]*grpcStream)}
	for _, c := range classes {
		md := make(metadata.MD)
		for name, values := range c.Header {
			md.Append(name, values...)
		}
		s.metadata = append(s.metadata, md)
	}
	security := insecure.NewCredentials()
	if t.TLS != nil {
		security = credentials.NewTLS(t.TLS)
	}
	for range max(t.Connections, 1) {
		c, err := grpc.NewClient("passthrough:///"+t.Address, grpc.WithTransportCredentials(security),
			grpc.WithUserAgent("nereid-perf"),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(encoded{}), grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)))
		if err != nil {
			return nil, fmt.Errorf("make a connection to %s: %w", t.Address, err)
		}
		s.connections = append(s.connections, c)
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s, nil
}

func (s *grpcSender) send(ctx context.Context, c *call, respond func()) error {
	message := mem.BufferSlice{mem.SliceBuffer(c.payload.grpc)}
	if c.step != nil {
		message = append(message, mem.SliceBuffer(appendSequence(nil, c.step)))
	}
	if s.target.Protocol == Stream {
		return s.stream(ctx, c, message, respond)
	}
	ctx = metadata.NewOutgoingContext(ctx, s.metadata[c.class])
	if within := c.within(s.target); within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, within)
		defer cancel()
	}
	connection := s.connections[s.next.Add(1)%uint64(len(s.connections))]
	var raw []byte
	into := any(discarded{})
	if c.keep {
		into = &raw
	}
	if err := connection.Invoke(ctx, methodInfer, &message, into); err != nil {
		return statusFailure(err)
	}
	respond()
	if !c.keep {
		return nil
	}
	response := new(inference.ModelInferResponse)
	if err := proto.Unmarshal(raw, response); err != nil {
		return &failure{"malformed response", err.Error()}
	}
	return c.keepGRPC(response)
}

// keepGRPC keeps a response.
func (c *call) keepGRPC(response *inference.ModelInferResponse) error {
	decoded, err := client.ResponseOf(response)
	if err != nil {
		return &failure{"malformed response", err.Error()}
	}
	c.kept = append(c.kept, decoded)
	return nil
}

// stream sends a request over an open stream and reads its responses up to the
// final one.
func (s *grpcSender) stream(ctx context.Context, c *call, message mem.BufferSlice, respond func()) error {
	stream, err := s.acquire(c.class)
	if err != nil {
		return statusFailure(err)
	}
	// A stream has no deadline for one of its requests: a request that exceeds its
	// own ends the stream.
	if within := c.within(s.target); within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, within)
		defer cancel()
	}
	unwatch := context.AfterFunc(ctx, stream.cancel)
	defer unwatch()
	message = append(message, mem.SliceBuffer(appendParameter(nil, wantFinal, fieldBool, 1)))
	if err := stream.SendMsg(&message); err != nil && !errors.Is(err, io.EOF) { // RecvMsg has the cause of an EOF
		stream.cancel()
		return statusFailure(err)
	}
	var refused error
	for {
		var raw []byte
		if err := stream.RecvMsg(&raw); err != nil {
			stream.cancel()
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return &failure{"timeout", "no final response within the request's timeout"}
			}
			return statusFailure(err)
		}
		response := new(inference.ModelStreamInferResponse)
		if err := proto.Unmarshal(raw, response); err != nil {
			stream.cancel()
			return &failure{"malformed response", err.Error()}
		}
		if err := c.take(response, respond); err != nil {
			refused = err
		}
		final, marked := response.GetInferResponse().GetParameters()[finalParameter]
		if !marked || final.GetBoolParam() { // servers do not mark the one response of other models
			break
		}
	}
	s.release(c.class, stream)
	return refused
}

// take counts a response of a stream, and keeps it if that was asked for.
func (c *call) take(response *inference.ModelStreamInferResponse, respond func()) error {
	if text := response.GetErrorMessage(); text != "" {
		return &failure{"error in the stream", text}
	}
	if len(response.GetInferResponse().GetOutputs()) == 0 {
		return nil
	}
	respond()
	if c.keep {
		return c.keepGRPC(response.GetInferResponse())
	}
	return nil
}

// acquire takes an idle stream of a class, or opens one.
func (s *grpcSender) acquire(class int) (*grpcStream, error) {
	s.mu.Lock()
	if n := len(s.idle[class]); n > 0 {
		stream := s.idle[class][n-1]
		s.idle[class] = s.idle[class][:n-1]
		s.mu.Unlock()
		return stream, nil
	}
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(s.ctx, s.metadata[class]))
	connection := s.connections[s.next.Add(1)%uint64(len(s.connections))]
	stream, err := connection.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, methodStream)
	if err != nil {
		cancel()
		return nil, err
	}
	return &grpcStream{stream, cancel}, nil
}

func (s *grpcSender) release(class int, stream *grpcStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle[class] = append(s.idle[class], stream)
}

// Close implements sender.
func (s *grpcSender) Close() error {
	s.stop()
	var all []error
	for _, c := range s.connections {
		all = append(all, c.Close())
	}
	return errors.Join(all...)
}

// statusFailure counts a status by the server's reason, or by its code.
func statusFailure(err error) error {
	s := status.Convert(err)
	if reason, ok := client.ReasonOf(s); ok {
		return &failure{reason, s.Message()}
	}
	return &failure{s.Code().String(), s.Message()}
}

// encoded is the codec of messages that are bytes already.
type encoded struct{}

// discarded takes a message that nobody reads.
type discarded struct{}

// Marshal implements encoding.CodecV2.
func (encoded) Marshal(v any) (mem.BufferSlice, error) {
	message, ok := v.(*mem.BufferSlice)
	if !ok {
		return nil, fmt.Errorf("%T is no encoded message", v)
	}
	return *message, nil
}

// Unmarshal implements encoding.CodecV2.
func (encoded) Unmarshal(data mem.BufferSlice, v any) error {
	if into, ok := v.(*[]byte); ok {
		*into = data.Materialize()
	}
	return nil
}

// Name implements encoding.CodecV2: servers see the content type of protobuf.
func (encoded) Name() string { return "proto" }
