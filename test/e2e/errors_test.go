package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/emptypb"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// The table of errors is testdata/errors.json: a request, what it comes to here and
// what the real server made of it, and where the two differ why. To record it anew:
//
//	NEREID_TRITON_MODELS=DIR go test -run TestErrors ./e2e   # writes a repository
//	tritonserver --model-repository=DIR FLAGS   # for each of errorServers
//	NEREID_TRITON_HTTP=ADDRESS,… NEREID_TRITON_GRPC=ADDRESS,… go test -run TestErrors ./e2e -update-errors
//
// where the addresses stand in the order of errorServers.
var updateErrors = flag.Bool("update-errors", false, "write what the servers respond into testdata/errors.json")

const errorTable = "testdata/errors.json"

// errorCase is one row of the table.
type errorCase struct {
	Name string `json:"name"`
	// Strict says that the second of errorServers is asked.
	Strict bool `json:"strict,omitempty"`
	// AtOnce is how many times it is asked at once; a refusal among the responses
	// counts.
	AtOnce int `json:"at_once,omitempty"`
	// Fatal says that the real server ends by the request, so that it is not sent there.
	Fatal bool `json:"fatal,omitempty"`
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
	// Requests are the messages of one stream; the answer is all that the stream
	// sends and its status. Metadata goes with the call.
	Requests []json.RawMessage `json:"requests,omitzero"`
	Metadata map[string]string `json:"metadata,omitempty"`
	// Whole says that the answer over gRPC is compared, not its error alone, and Show
	// which headers of an answer over HTTP are.
	Whole bool     `json:"whole,omitempty"`
	Show  []string `json:"show,omitempty"`

	// Here and Triton are a status and the text or body.
	Here   string `json:"here"`
	Triton string `json:"triton"`
	// Why says why the two differ.
	Why string `json:"why,omitempty"`
}

// errorServers are the flags of the servers: one that lets clients do what they like,
// and a strict one. The real server takes the same, but for --http-max-input-size and
// --allow-client-shm, which later releases than 2.51 have.
func errorServers() [][]string {
	return [][]string{
		{"--model-control-mode=explicit", "--load-model=*", "--allow-client-shm=true"},
		{"--http-max-input-size=150", "--http-restricted-api=statistics,health:key=x", "--grpc-restricted-protocol=statistics,health:key=x"},
	}
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
	const busy = "max_batch_size: 1\ninstance_group { count: 1 kind: KIND_CPU }\nparameters { key: \"execute_us\" value { string_value: \"500000\" } }\n"
	sequences := func(datatype string) string {
		return "max_batch_size: 4\n" + io("IN", "TYPE_INT32", "[ 1 ]") +
			"sequence_batching { control_input { name: \"CORRID\" control { kind: CONTROL_SEQUENCE_CORRID data_type: " + datatype + " } } }\n"
	}
	return map[string]string{
		"count":     sequences("TYPE_UINT64"),
		"story":     sequences("TYPE_STRING"),
		"pair":      "max_batch_size: 8\n" + io("A B", "TYPE_INT32", "[ 4 ]"),
		"vector":    io("IN", "TYPE_FP32", "[ -1 ]"),
		"table":     io("IN", "TYPE_INT32", "[ -1, -1 ]"),
		"text":      io("IN", "TYPE_STRING", "[ 2 ]"),
		"half":      io("IN", "TYPE_FP16", "[ 2 ]"),
		"flag":      io("IN", "TYPE_BOOL", "[ 2 ]"),
		"full":      busy + io("IN", "TYPE_INT32", "[ 1 ]") + "dynamic_batching { default_queue_policy { max_queue_size: 1 } }\n",
		"late":      busy + io("IN", "TYPE_INT32", "[ 1 ]") + "dynamic_batching { default_queue_policy { default_timeout_microseconds: 50000 } }\n",
		"decoupled": io("IN", "TYPE_INT32", "[ 1 ]") + "model_transaction_policy { decoupled: true }\n",
		"byte":      io("IN", "TYPE_INT8", "[ 2 ]"),
		"word":      io("IN", "TYPE_UINT16", "[ 2 ]"),
		"long":      io("IN", "TYPE_INT64", "[ 2 ]"),
		"unsigned":  io("IN", "TYPE_UINT64", "[ 2 ]"),
		"double":    io("IN", "TYPE_FP64", "[ -1 ]"),
		"texts":     "max_batch_size: 4\n" + io("IN", "TYPE_STRING", "[ -1 ]"),
		"shaped":    "max_batch_size: 4\n" + strings.Replace(io("IN", "TYPE_INT32", "[ 4 ]"), "dims: [ 4 ]", "dims: [ 4 ] reshape { shape: [ 2, 2 ] }", 2),
		"some":      strings.Replace(io("A B C", "TYPE_INT32", "[ 1 ]"), "name: \"C\" ", "name: \"C\" optional: true ", 1),
		"labels":    strings.Replace(io("IN", "TYPE_FP32", "[ 3 ]"), "name: \"OUT0\" ", "name: \"OUT0\" label_filename: \"labels.txt\" ", 1),
	}
}

// answerModels are the configurations of models that run the same Python on both
// servers.
func answerModels() map[string]string {
	return map[string]string{
		"shown": `input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } output { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }`,
		"failing": `max_batch_size: 1 input { name: "IN" data_type: TYPE_STRING dims: [ 1 ] }
			output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }, { name: "SIDE" data_type: TYPE_STRING dims: [ 1 ] } ]`,
		"several": `input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
			model_transaction_policy { decoupled: true }`,
	}
}

// answerSource is the code of answerModels: one file, which asks for the model's name.
const answerSource = "testdata/python/answers.py"

// labels are those of the model of that name: one fewer than it has elements.
const labels = "first\nsecond\n"

// pythonEcho is the real server's model.
const pythonEcho = `import json
import time

import triton_python_backend_utils as pb

class TritonPythonModel:
    def initialize(self, args):
        self.decoupled = args["model_name"] == "decoupled"
        parameters = json.loads(args["model_config"])["parameters"]
        self.seconds = int(parameters["execute_us"]["string_value"]) / 1e6 if "execute_us" in parameters else 0

    def execute(self, requests):
        time.sleep(self.seconds)
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
		for name, config := range answerModels() {
			if err := os.MkdirAll(filepath.Join(dir, name, "1"), 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, name, "config.pbtxt"), "backend: \"python\"\n"+config)
			write(t, filepath.Join(dir, name, "1", "model.py"), readFile(t, answerSource))
		}
		write(t, filepath.Join(dir, "labels", "labels.txt"), labels)
		t.Skip("the repository is written")
	}
	inOneProcess(t)
	files := map[string]string{}
	for name, config := range errorModels() {
		files[name+"/config.pbtxt"], files[name+"/1/.keep"] = "backend: \"echo\"\n"+config, ""
	}
	for name, config := range answerModels() {
		files[name+"/config.pbtxt"], files[name+"/1/model.py"] = "backend: \"python\"\n"+config, readFile(t, answerSource)
	}
	files["labels/labels.txt"] = labels
	var here, peers []*askedServer
	for _, flags := range errorServers() {
		s := start(t, repository(t, files), flags...)
		here = append(here, &askedServer{http: s.HTTP, grpc: dialed(t, s.GRPC)})
	}
	if addresses := os.Getenv("NEREID_TRITON_HTTP"); addresses != "" {
		grpc := strings.Split(os.Getenv("NEREID_TRITON_GRPC"), ",")
		for i, address := range strings.Split(addresses, ",") {
			peers = append(peers, &askedServer{http: address, grpc: dialed(t, grpc[i])})
		}
	}
	var cases []*errorCase
	text, err := os.ReadFile(errorTable)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		asked := 0
		if c.Strict {
			asked = 1
		}
		t.Run(c.Name, func(t *testing.T) {
			// Package protobuf has its texts differ between builds by such spaces.
			got := strings.ReplaceAll(here[asked].ask(t, c), "\u00a0", " ")
			if peers != nil && !c.Fatal {
				if said := peers[asked].ask(t, c); *updateErrors {
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

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
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

// ask returns the response to a row.
func (s *askedServer) ask(t *testing.T, c *errorCase) string {
	t.Helper()
	if c.AtOnce == 0 {
		return s.askOnce(t, c)
	}
	var asking sync.WaitGroup
	responses := make([]string, c.AtOnce)
	for i := range responses {
		asking.Go(func() { responses[i] = s.askOnce(t, c) })
	}
	asking.Wait()
	for _, r := range responses {
		if !strings.HasPrefix(r, "200") && strings.TrimSpace(r) != "OK" {
			return r
		}
	}
	return responses[0]
}

func (s *askedServer) askOnce(t *testing.T, c *errorCase) string {
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
	answer := fmt.Sprintf("%d %s", response.StatusCode, text)
	for _, name := range c.Show {
		answer += fmt.Sprintf(" %s: %s", name, response.Header.Get(name))
	}
	return answer
}

// call makes a call of gRPC by the method's description.
func (s *askedServer) call(ctx context.Context, t *testing.T, c *errorCase) string {
	t.Helper()
	full := "/" + inference.GRPCInferenceService_ServiceDesc.ServiceName + "/" + c.RPC
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(inference.GRPCInferenceService_ServiceDesc.ServiceName + "." + c.RPC))
	if err != nil { // a method that there is not
		return statusText(s.grpc.Invoke(ctx, full, new(emptypb.Empty), new(emptypb.Empty)))
	}
	method := found.(protoreflect.MethodDescriptor)
	if method.IsStreamingServer() {
		return s.stream(ctx, t, c, full, method)
	}
	in, out := dynamicpb.NewMessage(method.Input()), dynamicpb.NewMessage(method.Output())
	if err := protojson.Unmarshal(c.Request, in); err != nil {
		t.Fatal(err)
	}
	if err := s.grpc.Invoke(ctx, full, in, out); err != nil {
		return statusText(err)
	}
	if c.Whole {
		return "OK " + messageText(t, out)
	}
	return "OK"
}

// stream sends the messages of a row and returns what comes back: all of it where there
// are several or the whole is wanted, otherwise the first error.
func (s *askedServer) stream(ctx context.Context, t *testing.T, c *errorCase, full string, method protoreflect.MethodDescriptor) string {
	t.Helper()
	ctx = metadata.NewOutgoingContext(ctx, metadata.New(c.Metadata))
	stream, err := s.grpc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, full)
	if err != nil {
		return statusText(err)
	}
	requests := c.Requests
	if requests == nil {
		requests = []json.RawMessage{c.Request}
	}
	for _, request := range requests {
		in := dynamicpb.NewMessage(method.Input())
		if err := protojson.Unmarshal(request, in); err != nil {
			t.Fatal(err)
		}
		if err := stream.SendMsg(in); err != nil && !errors.Is(err, io.EOF) { // the status follows
			return statusText(err)
		}
	}
	_ = stream.CloseSend() // what is wrong the responses say
	var answer strings.Builder
	for {
		out := dynamicpb.NewMessage(method.Output())
		if err := stream.RecvMsg(out); errors.Is(err, io.EOF) {
			return answer.String() + "OK"
		} else if err != nil {
			return answer.String() + statusText(err)
		}
		if !c.Whole && c.Requests == nil {
			return "OK " + out.Get(method.Output().Fields().ByName("error_message")).String()
		}
		answer.WriteString(messageText(t, out) + "\n")
	}
}

func statusText(err error) string {
	st := status.Convert(err)
	return fmt.Sprintf("%s %s", st.Code(), st.Message())
}

// messageText is a message as JSON, without the spaces in which builds of package
// protojson differ.
func messageText(t *testing.T, m proto.Message) string {
	t.Helper()
	text, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
