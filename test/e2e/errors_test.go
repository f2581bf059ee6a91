package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// The table of errors is testdata/errors.json: a request, what it comes to here and
// what the real server made of it, and where the two differ why. To record it anew:
//
//	NEREID_TRITON_MODELS=DIR go test -run TestErrors ./e2e   # writes a repository
//	tritonserver --model-repository=DIR --model-control-mode=explicit --load-model=*
//	NEREID_TRITON_HTTP=ADDRESS NEREID_TRITON_GRPC=ADDRESS go test -run TestErrors ./e2e -update-errors
var updateErrors = flag.Bool("update-errors", false, "write what the servers respond into testdata/errors.json")

const errorTable = "testdata/errors.json"

// errorCase is one row of the table.
type errorCase struct {
	Name string `json:"name"`
	// Over HTTP: the method (POST), the path, headers and the body.
	Method  string            `json:"method,omitempty"`
	Path    string            `json:"path,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	Body    string            `json:"body,omitempty"`
	// Coding is how the body is compressed; the headers say what they like.
	Coding string `json:"coding,omitempty"`
	// Over gRPC: the method and its request, as JSON.
	RPC     string          `json:"rpc,omitempty"`
	Request json.RawMessage `json:"request,omitempty"`

	// Here and Triton are a status and the text or body.
	Here   string `json:"here"`
	Triton string `json:"triton"`
	// Why says why the two differ.
	Why string `json:"why,omitempty"`
}

// errorModels are the configurations of the models, without their backend.
func errorModels() map[string]string {
	io := func(inputs, datatype, dims string) string {
		var b strings.Builder
		for i, name := range strings.Fields(inputs) {
			fmt.Fprintf(&b, "input { name: %q data_type: %s dims: %s }\noutput { name: \"OUT%d\" data_type: %[2]s dims: %[3]s }\n", name, datatype, dims, i)
		}
		return b.String()
	}
	return map[string]string{
		"pair":      "max_batch_size: 8\n" + io("A B", "TYPE_INT32", "[ 4 ]"),
		"vector":    io("IN", "TYPE_FP32", "[ -1 ]"),
		"table":     io("IN", "TYPE_INT32", "[ -1, -1 ]"),
		"text":      io("IN", "TYPE_STRING", "[ 2 ]"),
		"half":      io("IN", "TYPE_FP16", "[ 2 ]"),
		"flag":      io("IN", "TYPE_BOOL", "[ 2 ]"),
		"decoupled": io("IN", "TYPE_INT32", "[ 1 ]") + "model_transaction_policy { decoupled: true }\n",
	}
}

// pythonEcho is the real server's model.
const pythonEcho = `import triton_python_backend_utils as pb

class TritonPythonModel:
    def initialize(self, args):
        self.decoupled = args["model_name"] == "decoupled"

    def execute(self, requests):
        responses = []
        for request in requests:
            inputs = sorted(request.inputs(), key=lambda t: t.name())
            response = pb.InferenceResponse([pb.Tensor(f"OUT{i}", t.as_numpy()) for i, t in enumerate(inputs)])
            if self.decoupled:
                sender = request.get_response_sender()
                sender.send(response)
                sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            responses.append(response)
        return None if self.decoupled else responses
`

func TestErrorsAreTritons(t *testing.T) {
	if dir := os.Getenv("NEREID_TRITON_MODELS"); dir != "" {
		for name, config := range errorModels() {
			if err := os.MkdirAll(filepath.Join(dir, name, "1"), 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, name, "config.pbtxt"), "backend: \"python\"\n"+config)
			write(t, filepath.Join(dir, name, "1", "model.py"), pythonEcho)
		}
		t.Skip("the repository is written")
	}
	inOneProcess(t)
	files := map[string]string{}
	for name, config := range errorModels() {
		files[name+"/config.pbtxt"], files[name+"/1/.keep"] = "backend: \"echo\"\n"+config, ""
	}
	s := start(t, repository(t, files), "--model-control-mode=explicit", "--load-model=*")
	var cases []*errorCase
	text, err := os.ReadFile(errorTable)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	here := &askedServer{http: s.HTTP, grpc: dialed(t, s.GRPC)}
	var peer *askedServer
	if address := os.Getenv("NEREID_TRITON_HTTP"); address != "" {
		peer = &askedServer{http: address, grpc: dialed(t, os.Getenv("NEREID_TRITON_GRPC"))}
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			// Package protobuf has its texts differ between builds by such spaces.
			got := strings.ReplaceAll(here.ask(t, c), "\u00a0", " ")
			if peer != nil {
				if said := peer.ask(t, c); *updateErrors {
					c.Triton = said
				} else if said != c.Triton {
					t.Errorf("the real server: %s\nin the table:    %s", said, c.Triton)
				}
			}
			if *updateErrors {
				c.Here = got
			} else if got != c.Here {
				t.Errorf("got  %s\nwant %s", got, c.Here)
			}
			if (c.Here != c.Triton) != (c.Why != "") {
				t.Errorf("here:   %s\nTriton: %s\nwhy:    %s", c.Here, c.Triton, c.Why)
			}
		})
	}
	if *updateErrors {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(cases); err != nil {
			t.Fatal(err)
		}
		write(t, errorTable, b.String())
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil { //nolint:gosec // as in a checkout
		t.Fatal(err)
	}
}

func dialed(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// askedServer is a server of whose errors the table is.
type askedServer struct {
	http string
	grpc *grpc.ClientConn
}

func (s *askedServer) ask(t *testing.T, c *errorCase) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if c.RPC != "" {
		return s.call(ctx, t, c)
	}
	body := c.Body
	if c.Coding == "gzip" {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, _ = io.WriteString(w, body)
		_ = w.Close()
		body = b.String()
	}
	method := c.Method
	if method == "" {
		method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://"+s.http+c.Path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		r.Header.Set(name, c.Headers[name])
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(r)
	if err != nil {
		return "no response"
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d %s", response.StatusCode, text)
}

// call makes a call of gRPC by the method's description.
func (s *askedServer) call(ctx context.Context, t *testing.T, c *errorCase) string {
	t.Helper()
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(inference.GRPCInferenceService_ServiceDesc.ServiceName + "." + c.RPC))
	if err != nil {
		t.Fatal(err)
	}
	method := found.(protoreflect.MethodDescriptor)
	in, out := dynamicpb.NewMessage(method.Input()), dynamicpb.NewMessage(method.Output())
	if err := protojson.Unmarshal(c.Request, in); err != nil {
		t.Fatal(err)
	}
	full := "/" + inference.GRPCInferenceService_ServiceDesc.ServiceName + "/" + c.RPC
	if !method.IsStreamingServer() {
		err = s.grpc.Invoke(ctx, full, in, out)
	} else {
		var stream grpc.ClientStream
		if stream, err = s.grpc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, full); err == nil {
			err = stream.SendMsg(in)
		}
		if err == nil {
			err = stream.RecvMsg(out)
		}
	}
	if err != nil {
		st := status.Convert(err)
		return fmt.Sprintf("%s %s", st.Code(), st.Message())
	}
	if !method.IsStreamingServer() {
		return "OK"
	}
	return "OK " + out.Get(method.Output().Fields().ByName("error_message")).String()
}
