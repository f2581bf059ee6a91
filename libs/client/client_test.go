package client_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/tensor"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// respondent is a server over HTTP that gives one response, and keeps what it was
// asked.
type respondent struct {
	status  int
	reason  string
	json    string
	binary  string
	path    string
	host    string
	header  http.Header
	timeout string
	head    map[string]any
	tail    string
}

func (a *respondent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.path, a.timeout = r.URL.EscapedPath(), r.Header.Get("X-Request-Timeout")
	a.host, a.header = r.Host, r.Header
	body, err := io.ReadAll(r.Body)
	if n, errHeader := strconv.Atoi(r.Header.Get("Inference-Header-Content-Length")); err == nil && errHeader == nil {
		err = json.Unmarshal(body[:n], &a.head)
		a.tail = string(body[n:])
	}
	if err != nil {
		a.status, a.json = http.StatusTeapot, err.Error()
	}
	if a.binary != "" {
		w.Header().Set("Inference-Header-Content-Length", strconv.Itoa(len(a.json)))
	}
	if a.reason != "" {
		w.Header().Set("Nereid-Reason", a.reason)
	}
	w.WriteHeader(max(a.status, http.StatusOK))
	_, _ = io.WriteString(w, a.json+a.binary)
}

func overHTTP(t *testing.T, a *respondent) client.Client {
	t.Helper()
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	c := client.HTTP(strings.TrimPrefix(server.URL, "http://"), client.Options{})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func about(name string, d tensor.Datatype, shape ...int64) client.Description {
	return client.Description{Name: name, Datatype: d, Shape: shape}
}

func request() *client.Request {
	return &client.Request{
		Model: "a/b", Version: "2", ID: "7", Outputs: []string{"y"},
		Inputs: []client.Tensor{{Description: about("x", tensor.Int16, 1, 2), Data: []byte("abcd")}, {Description: about("s", tensor.Uint8), Data: []byte("e")}},
	}
}

func response() *client.Response {
	return &client.Response{Model: "m", Version: "2", ID: "7", Outputs: []client.Tensor{
		{Description: about("y", tensor.Int16, 2), Data: []byte("1234")},
		{Description: about("z", tensor.Uint8, 0), Data: []byte{}},
	}}
}

func TestInferOverHTTPIsBinary(t *testing.T) {
	a := &respondent{
		json: `{"model_name":"m","model_version":"2","id":"7","outputs":[{"name":"y","datatype":"INT16","shape":[2],"parameters":{"binary_data_size":4}},` +
			`{"name":"z","datatype":"UINT8","shape":[0],"parameters":{"binary_data_size":0}}]}`,
		binary: "1234",
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	got, err := overHTTP(t, a).Infer(ctx, request())
	if diff := cmp.Diff(response(), got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if a.path != "/v2/models/a%2Fb/versions/2/infer" || a.tail != "abcde" {
		t.Errorf("asked %s with %q", a.path, a.tail)
	}
	if d, err := time.ParseDuration(a.timeout); err != nil || d <= 0 || d > time.Hour {
		t.Errorf("timeout %q", a.timeout)
	}
	want := map[string]any{
		"id": "7", "parameters": map[string]any{"binary_data_output": true},
		"outputs": []any{map[string]any{"name": "y", "parameters": map[string]any{"binary_data": true}}},
		"inputs": []any{
			map[string]any{"name": "x", "datatype": "INT16", "shape": []any{1.0, 2.0}, "parameters": map[string]any{"binary_data_size": 4.0}},
			map[string]any{"name": "s", "datatype": "UINT8", "shape": []any{}, "parameters": map[string]any{"binary_data_size": 1.0}},
		},
	}
	if diff := cmp.Diff(want, a.head); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
}

func TestHeadersOverHTTP(t *testing.T) {
	a := &respondent{json: "[]"}
	server := httptest.NewServer(a)
	defer server.Close()
	c := client.HTTP(server.URL, client.Options{Header: http.Header{"Key": {"a", "b"}, "Host": {"models.example.com"}}})
	defer c.Close()
	if _, err := c.Index(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := a.header.Values("Key"); len(got) != 2 || got[0] != "a" || got[1] != "b" || a.host != "models.example.com" {
		t.Errorf("sent %v to %s", got, a.host)
	}
}

func TestMetadataAndIndexOverHTTP(t *testing.T) {
	a := &respondent{json: `{"name":"m","versions":["1"],"platform":"p","inputs":[{"name":"x","datatype":"FP32","shape":[-1,2]}],"outputs":[]}`}
	got, err := overHTTP(t, a).Metadata(t.Context(), "m", "")
	if diff := cmp.Diff(metadata(), got); diff != "" || err != nil || a.path != "/v2/models/m" {
		t.Errorf("%s: %v (-want +got):\n%s", a.path, err, diff)
	}
	a = &respondent{json: `[{"name":"m","version":"1","state":"READY"},{"name":"n","reason":"bad"}]`}
	index, err := overHTTP(t, a).Index(t.Context())
	if diff := cmp.Diff(models(), index); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func metadata() *client.Metadata {
	return &client.Metadata{
		Name: "m", Versions: []string{"1"}, Platform: "p",
		Inputs: []client.Description{about("x", tensor.FP32, -1, 2)}, Outputs: []client.Description{},
	}
}

func models() []client.Model {
	return []client.Model{{Name: "m", Version: "1", State: "READY"}, {Name: "n", Reason: "bad"}}
}

func TestResponsesOverHTTPThatAreNone(t *testing.T) {
	tests := map[string]struct {
		server respondent
		want   string
		reason errs.Reason
	}{
		"a refusal":            {respondent{status: 404, reason: "model_not_found", json: `{"error":"no model"}`}, "no model", errs.ModelNotFound},
		"another's refusal":    {respondent{status: 400, json: `{"error":"no model"}`}, "no model", errs.Bug},
		"a proxy's page":       {respondent{status: 502, json: "<html>"}, "502 Bad Gateway: <html>", errs.Bug},
		"no JSON":              {respondent{json: "hello"}, "read the response", errs.Bug},
		"an unknown datatype":  {respondent{json: `{"outputs":[{"name":"y","datatype":"FP4","parameters":{"binary_data_size":0}}]}`}, `"FP4"`, errs.Unsupported},
		"a tensor in JSON":     {respondent{json: `{"outputs":[{"name":"y","datatype":"INT8"}]}`}, `output "y"`, errs.Bug},
		"a tensor that's cut":  {respondent{json: `{"outputs":[{"name":"y","datatype":"INT8","parameters":{"binary_data_size":3}}]}`, binary: "12"}, `output "y"`, errs.Bug},
		"a size below nothing": {respondent{json: `{"outputs":[{"name":"y","datatype":"INT8","parameters":{"binary_data_size":-1}}]}`, binary: "12"}, `output "y"`, errs.Bug},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := overHTTP(t, &tt.server).Infer(t.Context(), request())
			if err == nil || !strings.Contains(err.Error(), tt.want) || errs.Of(err) != tt.reason {
				t.Errorf("%v [%s], want %s [%s]", err, errs.Of(err), tt.want, tt.reason)
			}
		})
	}
}

// service answers over gRPC.
type service struct {
	inference.UnimplementedGRPCInferenceServiceServer
	asked *inference.ModelInferRequest
	end   bool
}

func (s *service) ModelMetadata(context.Context, *inference.ModelMetadataRequest) (*inference.ModelMetadataResponse, error) {
	return &inference.ModelMetadataResponse{
		Name: "m", Versions: []string{"1"}, Platform: "p",
		Inputs: []*inference.ModelMetadataResponse_TensorMetadata{{Name: "x", Datatype: "FP32", Shape: []int64{-1, 2}}},
	}, nil
}

func (s *service) RepositoryIndex(context.Context, *inference.RepositoryIndexRequest) (*inference.RepositoryIndexResponse, error) {
	return &inference.RepositoryIndexResponse{Models: []*inference.RepositoryIndexResponse_ModelIndex{
		{Name: "m", Version: "1", State: "READY"}, {Name: "n", Reason: "bad"},
	}}, nil
}

func (s *service) ModelInfer(ctx context.Context, r *inference.ModelInferRequest) (*inference.ModelInferResponse, error) {
	if r.GetModelName() == "none" {
		refused, err := status.New(codes.NotFound, "no model").WithDetails(&errdetails.ErrorInfo{Reason: "model_not_found"})
		if err != nil {
			return nil, err
		}
		return nil, refused.Err()
	}
	s.asked = r
	_, s.end = ctx.Deadline()
	return &inference.ModelInferResponse{
		ModelName: "m", ModelVersion: "2", Id: "7",
		Outputs: []*inference.ModelInferResponse_InferOutputTensor{
			{Name: "y", Datatype: "INT16", Shape: []int64{2}}, {Name: "z", Datatype: "UINT8", Shape: []int64{0}},
		},
		RawOutputContents: [][]byte{[]byte("1234"), {}},
	}, nil
}

func overGRPC(t *testing.T, s *service) client.Client {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	inference.RegisterGRPCInferenceServiceServer(server, s)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	c, err := client.GRPC("grpc://"+listener.Addr().String(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestCallsOverGRPC(t *testing.T) {
	s := &service{}
	c := overGRPC(t, s)
	about, err := c.Metadata(t.Context(), "m", "")
	if diff := cmp.Diff(metadata(), about); diff != "" || err != nil {
		t.Errorf("metadata: %v (-want +got):\n%s", err, diff)
	}
	index, err := c.Index(t.Context())
	if diff := cmp.Diff(models(), index); diff != "" || err != nil {
		t.Errorf("index: %v (-want +got):\n%s", err, diff)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	got, err := c.Infer(ctx, request())
	if diff := cmp.Diff(response(), got); diff != "" || err != nil {
		t.Errorf("infer: %v (-want +got):\n%s", err, diff)
	}
	if !s.end || s.asked.GetId() != "7" || s.asked.GetModelVersion() != "2" || s.asked.GetOutputs()[0].GetName() != "y" {
		t.Errorf("asked %v, with a deadline: %t", s.asked, s.end)
	}
	if diff := cmp.Diff([][]byte{[]byte("abcd"), []byte("e")}, s.asked.GetRawInputContents()); diff != "" {
		t.Errorf("bytes (-want +got):\n%s", diff)
	}
	_, err = c.Infer(t.Context(), &client.Request{Model: "none"})
	if errs.Of(err) != errs.ModelNotFound || err.Error() != "no model" {
		t.Errorf("refusal: %v [%s]", err, errs.Of(err))
	}
}
