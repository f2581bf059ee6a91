package rpc_test

import (
	"compress/zlib"
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"

	"github.com/nereid-serving/nereid/libs/errs"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
)

func checkAddSub(t testing.TB, rows int, r *inference.ModelInferResponse) {
	t.Helper()
	checkAddSubBy(t, rows, 1, r)
}

func checkAddSubBy(t testing.TB, rows int, by int32, r *inference.ModelInferResponse) {
	t.Helper()
	if r.ModelName != "add_sub" || r.ModelVersion != "1" || len(r.Outputs) != 2 || len(r.RawOutputContents) != 2 {
		t.Errorf("the response is from %s/%s with %d outputs, %d raw", r.ModelName, r.ModelVersion, len(r.Outputs), len(r.RawOutputContents))
		return
	}
	for o, delta := range []int32{by, -by} {
		if out := r.Outputs[o]; out.Datatype != "INT32" || len(out.Shape) != 2 || out.Shape[0] != int64(rows) || out.Contents != nil {
			t.Errorf("output %d is %v", o, out)
		}
		for i := range 16 * rows {
			if got := int32At(r.RawOutputContents[o], i); got != int32(i)+delta {
				t.Errorf("output %d has %d at %d, want %d", o, got, i, int32(i)+delta)
				return
			}
		}
	}
}

func TestInferOfAllSizes(t *testing.T) {
	s := serve(t)
	// Below and above a network buffer, gRPC's pooling threshold and ours.
	for _, rows := range []int{1, 16, 255, 256, 257, 5000, 20_000} {
		for name, options := range map[string][]grpc.CallOption{"plain": nil, "gzip": {grpc.UseCompressor(gzip.Name)}} {
			options = append(options, grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20))
			r, err := s.client.ModelInfer(t.Context(), addSub(rows), options...)
			if err != nil {
				t.Fatalf("%d rows, %s: %v", rows, name, err)
			}
			if r.Id != "r1" {
				t.Errorf("id is %q", r.Id)
			}
			checkAddSub(t, rows, r)
			<-s.models.submitted
		}
	}
}

// Requests, tensors and replies are pooled: none may show in another's response.
func TestInferConcurrently(t *testing.T) {
	s := serve(t)
	var callers sync.WaitGroup
	for caller := range 16 {
		callers.Go(func() {
			for i := range 20 {
				rows, by := 1+(caller*20+i)%7*97, int32(1000*caller+i)
				r, err := s.client.ModelInfer(t.Context(), addSubBy(rows, by))
				if err != nil {
					t.Error(err)
					return
				}
				checkAddSubBy(t, rows, by, r)
			}
		})
	}
	callers.Wait()
}

func TestInferReadsDeflate(t *testing.T) {
	s := serve(t)
	s.dial(grpc.WithCompressor(deflater{})) //nolint:staticcheck // as in the server
	r, err := s.client.ModelInfer(t.Context(), addSub(300))
	if err != nil {
		t.Fatal(err)
	}
	checkAddSub(t, 300, r)
}

type deflater struct{}

func (deflater) Type() string { return "deflate" }

func (deflater) Do(w io.Writer, p []byte) error {
	z := zlib.NewWriter(w)
	if _, err := z.Write(p); err != nil {
		return err
	}
	return z.Close()
}

// A message is refused by its size before and after decompression.
func TestMessageLimit(t *testing.T) {
	const rows = 300 // 38 KiB, much less compressed
	dials := map[string][]grpc.DialOption{
		"plain":   nil,
		"gzip":    {grpc.WithDefaultCallOptions(grpc.UseCompressor(gzip.Name))},
		"deflate": {grpc.WithCompressor(deflater{})}, //nolint:staticcheck // as in the server
	}
	for name, options := range dials {
		t.Run(name, func(t *testing.T) {
			s := serveWith(t, rpc.Options{MaxMessageBytes: 32 << 10})
			s.dial(options...)
			if _, err := s.client.ModelInfer(t.Context(), addSub(rows)); status.Code(err) != codes.ResourceExhausted {
				t.Errorf("got %v, want RESOURCE_EXHAUSTED", err)
			}
			if _, err := s.client.ModelInfer(t.Context(), addSub(100)); err != nil {
				t.Errorf("a message within the limit: %v", err)
			}
		})
	}
}

func TestInferTypedContents(t *testing.T) {
	s := serve(t)
	m := addSub(1)
	m.RawInputContents = nil
	counting, ones := &inference.InferTensorContents{}, &inference.InferTensorContents{}
	for i := range 16 {
		counting.IntContents = append(counting.IntContents, int32(i))
		ones.IntContents = append(ones.IntContents, 1)
	}
	m.Inputs[0].Contents, m.Inputs[1].Contents = counting, ones
	r, err := s.client.ModelInfer(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	checkAddSub(t, 1, r)
}

func TestInferReturnsOnlyRequestedOutputs(t *testing.T) {
	s := serve(t)
	m := addSub(1)
	m.Outputs = []*inference.ModelInferRequest_InferRequestedOutputTensor{{Name: "OUTPUT1"}}
	r, err := s.client.ModelInfer(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Outputs) != 1 || r.Outputs[0].Name != "OUTPUT1" || int32At(r.RawOutputContents[0], 5) != 4 {
		t.Errorf("got %v", r)
	}
}

func TestInferRefuses(t *testing.T) {
	parameter := func(key string, p *inference.InferParameter) func(*inference.ModelInferRequest) {
		return func(m *inference.ModelInferRequest) {
			m.Parameters = map[string]*inference.InferParameter{key: p}
		}
	}
	output := func(key string, p *inference.InferParameter) func(*inference.ModelInferRequest) {
		return func(m *inference.ModelInferRequest) {
			m.Outputs = []*inference.ModelInferRequest_InferRequestedOutputTensor{{
				Name: "OUTPUT0", Parameters: map[string]*inference.InferParameter{key: p},
			}}
		}
	}
	number := &inference.InferParameter{ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: -1}}
	one := &inference.InferParameter{ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: 1}}
	text := &inference.InferParameter{ParameterChoice: &inference.InferParameter_StringParam{StringParam: "x"}}
	unsigned := &inference.InferParameter{ParameterChoice: &inference.InferParameter_Uint64Param{Uint64Param: 1}}
	tests := map[string]struct {
		change func(*inference.ModelInferRequest)
		code   codes.Code
		reason errs.Reason
		text   string
	}{
		"unknown model": {
			func(m *inference.ModelInferRequest) { m.ModelName = "none" },
			codes.NotFound, errs.ModelNotFound, "Request for unknown model: 'none' is not found",
		},
		"version that is not ready": {
			func(m *inference.ModelInferRequest) { m.ModelVersion = "2" },
			codes.Unavailable, errs.ModelNotReady, "Request for unknown model: 'add_sub' version 2 is not at ready state",
		},
		"version that is no number": {
			func(m *inference.ModelInferRequest) { m.ModelVersion = "x" },
			codes.InvalidArgument, errs.InvalidVersion,
			"failed to get model version from specified version string 'x' (details: stol), version should be an integral value > 0",
		},
		"decoupled model": {
			func(m *inference.ModelInferRequest) { m.ModelName = "tokens" },
			codes.Unimplemented, errs.Unsupported, "ModelInfer RPC doesn't support models with decoupled transaction policy",
		},
		"input without data": {
			func(m *inference.ModelInferRequest) { m.RawInputContents = m.RawInputContents[:1] },
			codes.InvalidArgument, errs.TensorDataInvalid, "unable to find data for input tensor 'INPUT1' for model 'add_sub' in request.",
		},
		"too few bytes": {
			func(m *inference.ModelInferRequest) { m.RawInputContents[1] = m.RawInputContents[1][:60] },
			codes.InvalidArgument, errs.ByteSizeMismatch,
			"[request id: r1] input byte size mismatch for input 'INPUT1' for model 'add_sub'. Expected 64, got 60",
		},
		"other datatype": {
			func(m *inference.ModelInferRequest) { m.Inputs[0].Datatype = "FP32" },
			codes.InvalidArgument, errs.DatatypeMismatch,
			"[request id: r1] inference input 'INPUT0' data-type is 'FP32', but model 'add_sub' expects 'INT32'",
		},
		"client shared memory": {
			func(m *inference.ModelInferRequest) {
				m.Inputs[0].Parameters = map[string]*inference.InferParameter{"shared_memory_region": text, "shared_memory_byte_size": one}
			},
			codes.NotFound, errs.RegionNotFound, "Unable to find shared memory region: 'x'",
		},
		"output to shared memory": {
			func(m *inference.ModelInferRequest) {
				output("shared_memory_region", text)(m)
				m.Outputs[0].Parameters["shared_memory_byte_size"] = one
			},
			codes.NotFound, errs.RegionNotFound, "Unable to find shared memory region: 'x'",
		},
		"a region without a size": {
			output("shared_memory_region", text), codes.InvalidArgument, errs.InvalidParameter,
			"'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'OUTPUT0'",
		},
		"an offset without a region": {
			output("shared_memory_offset", one), codes.InvalidArgument, errs.InvalidParameter,
			"'shared_memory_offset' can not be specified without 'shared_memory_region' parameter for tensor 'OUTPUT0'",
		},
		"a region's size by a text": {
			func(m *inference.ModelInferRequest) {
				output("shared_memory_region", text)(m)
				m.Outputs[0].Parameters["shared_memory_byte_size"] = text
			},
			codes.InvalidArgument, errs.InvalidParameter, "invalid value type for 'shared_memory_byte_size' parameter for tensor 'OUTPUT0', expected int64_param.",
		},
		"a region by a number": {
			output("shared_memory_region", number), codes.InvalidArgument, errs.InvalidParameter,
			"invalid value type for 'shared_memory_region' parameter for tensor 'OUTPUT0', expected string_param.",
		},
		"classification to shared memory": {
			func(m *inference.ModelInferRequest) {
				output("classification", one)(m)
				m.Outputs[0].Parameters["shared_memory_region"] = text
				m.Outputs[0].Parameters["shared_memory_byte_size"] = one
			},
			codes.InvalidArgument, errs.InvalidParameter, "output can't set both 'shared_memory_region' and 'classification'",
		},
		"classification by no classes": {
			output("classification", number), codes.InvalidArgument, errs.InvalidParameter,
			"invalid value for 'classification' parameter, expected >= 0",
		},
		"classification of a wrong type": {
			output("classification", text), codes.InvalidArgument, errs.InvalidParameter,
			"invalid value type for 'classification' parameter, expected int64_param",
		},
		"sequence id of a wrong type": {
			parameter("sequence_id", &inference.InferParameter{}), codes.InvalidArgument, errs.InvalidParameter,
			"invalid value type for 'sequence_id' parameter, expected int64_param or string_param.",
		},
		"sequence start of a wrong type": {
			parameter("sequence_start", text), codes.InvalidArgument, errs.InvalidParameter,
			"invalid value type for 'sequence_start' parameter, expected bool_param.",
		},
		"negative priority": {
			parameter("priority", number), codes.InvalidArgument, errs.InvalidParameter,
			"invalid value for 'priority', expected value >= 0.",
		},
		"priority of a wrong type": {
			parameter("priority", text), codes.InvalidArgument, errs.InvalidParameter,
			"invalid value type for 'priority' parameter, expected int64_param or uint64_param.",
		},
		"timeout of a wrong type": {
			parameter("timeout", unsigned), codes.InvalidArgument, errs.InvalidParameter,
			"invalid value type for 'timeout' parameter, expected int64_param.",
		},
		"reserved parameter": {
			parameter("triton_secret", text), codes.InvalidArgument, errs.InvalidParameter,
			"parameter keys starting with 'triton_' are reserved for Triton usage. " +
				"Only the following keys starting with 'triton_' are allowed: triton_enable_empty_final_response",
		},
		"custom unsigned parameter": {
			parameter("top_k", unsigned), codes.InvalidArgument, errs.InvalidParameter,
			"invalid value type for 'top_k' parameter, expected int64_param, bool_param, or string_param.",
		},
	}
	s := serve(t)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m := addSub(1)
			tt.change(m)
			_, err := s.client.ModelInfer(t.Context(), m)
			st := status.Convert(err)
			if st.Code() != tt.code || st.Message() != tt.text {
				t.Errorf("got %v %q\nwant %v %q", st.Code(), st.Message(), tt.code, tt.text)
			}
			if info := detail[*errdetails.ErrorInfo](st); info.GetReason() != string(tt.reason) || info.GetDomain() != "nereid" {
				t.Errorf("detail %v, want reason %s", info, tt.reason)
			}
		})
	}
}

func detail[T any](st *status.Status) (found T) {
	for _, d := range st.Details() {
		if v, ok := d.(T); ok {
			return v
		}
	}
	return found
}

func TestInferErrorsOfTheScheduler(t *testing.T) {
	hidden := errors.New("disk on fire")
	tests := map[string]struct {
		err    error
		code   codes.Code
		text   string
		retry  time.Duration
		logged error
	}{
		"time to come back":   {errs.New(errs.QueueFull, "queue of 'm' is full").WithModel("m").WithRetry(2 * time.Second), codes.ResourceExhausted, "queue of 'm' is full", 2 * time.Second, nil},
		"may be tried again":  {errs.New(errs.NoWorker, "no worker").WithModel("m"), codes.Unavailable, "no worker", time.Second, nil},
		"execution failed":    {errs.New(errs.ExecutionFailed, "onnx runtime error 2: x").WithModel("m"), codes.Internal, "onnx runtime error 2: x", 0, nil},
		"not meant for users": {hidden, codes.Internal, "internal error", 0, hidden},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, place := range []string{"submit", "response"} {
				s := serve(t)
				s.models.set(func() {
					if place == "submit" {
						s.models.refusal = tt.err
					} else {
						s.models.failure = tt.err
					}
				})
				_, err := s.client.ModelInfer(t.Context(), addSub(300))
				st := status.Convert(err)
				if st.Code() != tt.code || st.Message() != tt.text {
					t.Errorf("%s: got %v %q, want %v %q", place, st.Code(), st.Message(), tt.code, tt.text)
				}
				if got := detail[*errdetails.RetryInfo](st).GetRetryDelay().AsDuration(); got != tt.retry {
					t.Errorf("%s: retry after %v, want %v", place, got, tt.retry)
				}
				if tt.logged == nil {
					if info := detail[*errdetails.ErrorInfo](st); info.GetMetadata()["model"] != "m" {
						t.Errorf("%s: detail %v does not name the model", place, info)
					}
					continue
				}
				if got := <-s.logged; !errors.Is(got, tt.logged) {
					t.Errorf("%s: logged %v", place, got)
				}
			}
		})
	}
}

func TestInferCanceledReleasesEverything(t *testing.T) {
	s := serve(t)
	s.models.set(func() { s.models.hold = true })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.client.ModelInfer(ctx, addSub(1000))
		done <- err
	}()
	<-s.models.submitted
	cancel()
	if err := <-done; status.Code(err) != codes.Canceled {
		t.Errorf("client got %v", err)
	}
	// serve's cleanup checks that no request and no buffer is left.
}

func TestInferDeadlineReachesTheRequest(t *testing.T) {
	s := serve(t)
	deadline := time.Now().Add(time.Hour)
	ctx, cancel := context.WithDeadline(t.Context(), deadline)
	defer cancel()
	if _, err := s.client.ModelInfer(ctx, addSub(1)); err != nil {
		t.Fatal(err)
	}
	// The deadline travels as the time left, so the server's is a little off.
	got := <-s.models.submitted
	if off := got.Deadline.Sub(s.clock.At(deadline)).Abs(); got.Deadline == 0 || off > time.Minute {
		t.Errorf("deadline is off by %v", off)
	}
}

func TestMalformedMessageIsRefused(t *testing.T) {
	s := serve(t)
	err := s.conn.Invoke(t.Context(), inference.GRPCInferenceService_ModelInfer_FullMethodName,
		[]byte("\x0a\xff"), new([]byte), grpc.ForceCodec(bytesCodec{}))
	if status.Code(err) != codes.Internal {
		t.Errorf("got %v, want INTERNAL", err)
	}
}

// bytesCodec sends bytes as they are.
type bytesCodec struct{}

func (bytesCodec) Marshal(v any) ([]byte, error)   { return v.([]byte), nil }
func (bytesCodec) Unmarshal(b []byte, v any) error { *v.(*[]byte) = b; return nil }
func (bytesCodec) Name() string                    { return "proto" }

func TestInterceptorsSeeTheError(t *testing.T) {
	var seen error
	s := serve(t, grpc.UnaryInterceptor(func(ctx context.Context, r any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		reply, err := next(ctx, r)
		seen = err
		return reply, err
	}))
	m := addSub(1)
	m.ModelName = "none"
	if _, err := s.client.ModelInfer(t.Context(), m); status.Code(err) != codes.NotFound {
		t.Errorf("client got %v", err)
	}
	if errs.Of(seen) != errs.ModelNotFound {
		t.Errorf("interceptor saw %v", seen)
	}
}

func BenchmarkModelInfer(b *testing.B) {
	for name, rows := range map[string]int{"small": 1, "600KiB": 4800} {
		b.Run(name, func(b *testing.B) {
			s := serve(b)
			m := addSub(rows)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.client.ModelInfer(context.Background(), m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
