package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

type overGRPC struct {
	header     metadata.MD
	connection *grpc.ClientConn
	service    inference.GRPCInferenceServiceClient
}

// GRPC returns a client of the server at address, a host and port. It connects
// with the first call.
func GRPC(address string, o Options) (Client, error) {
	if _, after, ok := strings.Cut(address, "://"); ok {
		address = after
	}
	o = o.withDefaults()
	security := insecure.NewCredentials()
	if o.TLS != nil {
		security = credentials.NewTLS(o.TLS)
	}
	c := &overGRPC{header: make(metadata.MD)}
	for name, values := range o.Header {
		c.header.Append(name, values...)
	}
	connection, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithUnaryInterceptor(c.withHeader), grpc.WithTransportCredentials(security),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: o.ConnectTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(int(o.MaxResponseBytes)), grpc.MaxCallSendMsgSize(math.MaxInt32),
			experimental.AcceptCompressors())) // what else the process decompresses may be for its server alone
	if err != nil {
		return nil, fmt.Errorf("make a connection to %s: %w", address, err)
	}
	c.connection, c.service = connection, inference.NewGRPCInferenceServiceClient(connection)
	return c, nil
}

// withHeader adds the header to a call.
func (c *overGRPC) withHeader(ctx context.Context, method string, in, out any, connection *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	given, _ := metadata.FromOutgoingContext(ctx)
	return invoke(metadata.NewOutgoingContext(ctx, metadata.Join(given, c.header)), method, in, out, connection, options...)
}

func (c *overGRPC) Explain(context.Context, string) (*infer.Explanation, error) {
	return nil, errs.New(errs.Unsupported, "requests are explained over HTTP alone: leave --protocol=grpc out, and give the port of HTTP")
}

func (c *overGRPC) Record(context.Context, *RecordRequest) (io.ReadCloser, error) {
	return nil, errs.New(errs.Unsupported, "requests are recorded for clients of HTTP alone: leave --protocol=grpc out, and give the port of HTTP")
}

func (c *overGRPC) RegisterMemory(ctx context.Context, name, key string, size int64) error {
	_, err := c.service.SystemSharedMemoryRegister(ctx, &inference.SystemSharedMemoryRegisterRequest{Name: name, Key: key, ByteSize: uint64(size)}) //nolint:gosec // not negative
	return c.failure(err)
}

func (c *overGRPC) UnregisterMemory(ctx context.Context, name string) error {
	_, err := c.service.SystemSharedMemoryUnregister(ctx, &inference.SystemSharedMemoryUnregisterRequest{Name: name})
	return c.failure(err)
}

func (c *overGRPC) Close() error { return c.connection.Close() }

func (c *overGRPC) Metadata(ctx context.Context, model, version string) (*Metadata, error) {
	wire, err := c.service.ModelMetadata(ctx, &inference.ModelMetadataRequest{Name: model, Version: version})
	if err != nil {
		return nil, c.failure(err)
	}
	m := &Metadata{Name: wire.GetName(), Versions: wire.GetVersions(), Platform: wire.GetPlatform()}
	if m.Inputs, err = describeAll(wire.GetInputs()); err != nil {
		return nil, err
	}
	m.Outputs, err = describeAll(wire.GetOutputs())
	return m, err
}

func describeAll(wire []*inference.ModelMetadataResponse_TensorMetadata) ([]Description, error) {
	list := make([]Description, len(wire))
	for i, w := range wire {
		var err error
		if list[i], err = describe(w.GetName(), w.GetDatatype(), w.GetShape()); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func (c *overGRPC) Index(ctx context.Context) ([]Model, error) {
	wire, err := c.service.RepositoryIndex(ctx, &inference.RepositoryIndexRequest{})
	if err != nil {
		return nil, c.failure(err)
	}
	models := make([]Model, len(wire.GetModels()))
	for i, m := range wire.GetModels() {
		models[i] = Model{Name: m.GetName(), Version: m.GetVersion(), State: m.GetState(), Reason: m.GetReason()}
	}
	return models, nil
}

// GRPC returns the request's message over gRPC. It shares the tensors' bytes.
func (r *Request) GRPC() *inference.ModelInferRequest {
	wire := &inference.ModelInferRequest{ModelName: r.Model, ModelVersion: r.Version, Id: r.ID}
	for _, t := range r.Inputs {
		wire.Inputs = append(wire.Inputs, &inference.ModelInferRequest_InferInputTensor{
			Name: t.Name, Datatype: t.Datatype.String(), Shape: t.Shape,
		})
		wire.RawInputContents = append(wire.RawInputContents, t.Data)
	}
	for _, name := range r.Outputs {
		wire.Outputs = append(wire.Outputs, &inference.ModelInferRequest_InferRequestedOutputTensor{Name: name})
	}
	return wire
}

func (c *overGRPC) Infer(ctx context.Context, r *Request) (*Response, error) {
	response, err := c.service.ModelInfer(ctx, r.GRPC())
	if err != nil {
		return nil, c.failure(err)
	}
	return ResponseOf(response)
}

// ResponseOf reads the message of a response over gRPC. The tensors share its bytes.
func ResponseOf(wire *inference.ModelInferResponse) (*Response, error) {
	outputs, raw := wire.GetOutputs(), wire.GetRawOutputContents()
	if len(raw) != len(outputs) {
		return nil, fmt.Errorf("the response has %d outputs and the bytes of %d", len(outputs), len(raw))
	}
	response := &Response{Model: wire.GetModelName(), Version: wire.GetModelVersion(), ID: wire.GetId(), Outputs: make([]Tensor, len(outputs))}
	for i, w := range outputs {
		about, err := describe(w.GetName(), w.GetDatatype(), w.GetShape())
		if err != nil {
			return nil, err
		}
		response.Outputs[i] = Tensor{Description: about, Data: raw[i]}
	}
	return response, nil
}

// failure gives a status its server's words and reason. A status without a
// reason is of another server, or of the connection. Without an error there is none.
func (c *overGRPC) failure(err error) error {
	if err == nil {
		return nil
	}
	s := status.Convert(err)
	if reason, ok := ReasonOf(s); ok {
		return failed(s.Message(), reason)
	}
	return errors.New(c.connection.Target()[len("passthrough:///"):] + ": " + s.Code().String() + ": " + s.Message())
}

// ReasonOf returns the reason that a server has given in a status, if it has.
func ReasonOf(s *status.Status) (reason string, ok bool) {
	for _, detail := range s.Details() {
		if about, ok := detail.(*errdetails.ErrorInfo); ok {
			return about.GetReason(), true
		}
	}
	return "", false
}
