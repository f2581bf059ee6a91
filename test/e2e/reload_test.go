package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// swapping is an echo model whose output has another name in each content, so
// that an answer tells which content gave it.
func swapping(output string) string {
	return fmt.Sprintf(`
backend: "echo"
max_batch_size: 4
input [{ name: "x" data_type: TYPE_INT32 dims: [1] }]
output [{ name: %q data_type: TYPE_INT32 dims: [1] }]
instance_group [{ count: 2 kind: KIND_CPU }]
parameters [{ key: "execute_us" value: { string_value: "300" } }]
`, output)
}

// load sends requests from several clients until it is ended, and counts the
// answers. A request that fails fails the test.
type load struct {
	t        *testing.T
	s        *server
	answered atomic.Int64
	outputs  sync.Map // names of outputs that were answered
	stop     context.CancelFunc
	clients  sync.WaitGroup
}

// underLoad sends requests to simple and to echo models.
func (s *server) underLoad(t *testing.T, echoes ...string) *load {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	l := &load{t: t, s: s, stop: stop}
	connection, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	client := inference.NewGRPCInferenceServiceClient(connection)
	for range 3 {
		for _, echo := range echoes {
			l.client(ctx, "HTTP "+echo, func() error { return l.http(s.HTTP, echo, one) })
			l.client(ctx, "gRPC "+echo, func() error { return l.grpc(client, echo, []int64{1, 1}, "x") })
		}
		l.client(ctx, "HTTP onnx", func() error { return l.http(s.HTTP, "simple", addSub()) })
		l.client(ctx, "gRPC onnx", func() error { return l.grpc(client, "simple", []int64{1, 16}, "INPUT0", "INPUT1") })
	}
	t.Cleanup(func() {
		l.end()
		if err := connection.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func (l *load) client(ctx context.Context, what string, call func() error) {
	l.clients.Go(func() {
		for ctx.Err() == nil {
			if err := call(); err != nil {
				l.t.Errorf("%s: %v", what, err)
				return
			}
			l.answered.Add(1)
		}
	})
}

// end stops the clients when their last answers are there.
func (l *load) end() {
	l.stop()
	l.clients.Wait()
}

// more waits for so many answers.
func (l *load) more(n int64) {
	l.t.Helper()
	want := l.answered.Load() + n
	l.s.eventually(fmt.Sprintf("%d more answers", n), func() bool { return l.answered.Load() >= want || l.t.Failed() })
}

func (l *load) http(address, model, body string) error {
	response, err := http.Post("http://"+address+"/v2/models/"+model+"/infer", "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%d %s", response.StatusCode, text)
	}
	for _, name := range []string{"y", "z"} {
		if strings.Contains(string(text), fmt.Sprintf(`"name":%q`, name)) {
			l.outputs.Store(name, true)
		}
	}
	return nil
}

func (l *load) grpc(client inference.GRPCInferenceServiceClient, model string, shape []int64, inputs ...string) error {
	request := &inference.ModelInferRequest{ModelName: model}
	elements := shape[0] * shape[1]
	for _, name := range inputs {
		request.Inputs = append(request.Inputs, &inference.ModelInferRequest_InferInputTensor{Name: name, Datatype: "INT32", Shape: shape})
		request.RawInputContents = append(request.RawInputContents, make([]byte, 4*elements))
	}
	response, err := client.ModelInfer(context.Background(), request)
	if err != nil {
		return err
	}
	if len(response.GetOutputs()) == 0 || int64(len(response.GetRawOutputContents()[0])) != 4*elements {
		return errors.New("an answer without its output")
	}
	l.outputs.Store(response.GetOutputs()[0].GetName(), true)
	return nil
}

func addSub() string {
	input := func(name string) string {
		return fmt.Sprintf(`{"name":%q,"datatype":"INT32","shape":[1,16],"data":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}`, name)
	}
	return `{"inputs":[` + input("INPUT0") + "," + input("INPUT1") + `]}`
}

// reloadable makes a repository with the echo model and a copy of simple.
func reloadable(t *testing.T) (dir string) {
	t.Helper()
	dir = repository(t, map[string]string{"echo/config.pbtxt": swapping("y"), "echo/1/.keep": ""})
	if err := os.CopyFS(filepath.Join(dir, "simple"), os.DirFS(filepath.Join(examples(t), "simple"))); err != nil {
		t.Fatal(err)
	}
	return dir
}

// rewrite replaces a file at once, as one should.
func rewrite(t *testing.T, path, text string) {
	t.Helper()
	draft := path + ".draft"
	if err := os.WriteFile(draft, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(draft, path); err != nil {
		t.Fatal(err)
	}
}

func TestNoRequestFailsWhileModelsAreReloaded(t *testing.T) {
	const reloads = 100
	dir := reloadable(t)
	s := start(t, dir, "--model-control-mode=explicit", "--load-model=echo", "--load-model=simple")
	l := s.underLoad(t, "echo")
	config := filepath.Join(dir, "simple", "config.pbtxt")
	simple, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	for i := range reloads / 2 {
		rewrite(t, filepath.Join(dir, "echo", "config.pbtxt"), swapping([]string{"y", "z"}[(i+1)%2]))
		rewrite(t, config, string(simple)+fmt.Sprintf(`parameters { key: "reload" value { string_value: "%d" } }`, i))
		for _, model := range []string{"echo", "simple"} {
			if status, text := s.do(http.MethodPost, s.HTTP+"/v2/repository/models/"+model+"/load", ""); status != http.StatusOK {
				t.Fatalf("reload %d of %s: %d %s", i, model, status, text)
			}
		}
		l.more(20)
	}
	l.end()
	for _, name := range []string{"y", "z", "OUTPUT0"} {
		if _, ok := l.outputs.Load(name); !ok {
			t.Errorf("no answer has the output %s", name)
		}
	}
	t.Logf("%d requests over %d reloads", l.answered.Load(), reloads)
}

// Three models change before one scan: two echo models under load and one of
// ONNX Runtime.
func TestNoRequestFailsWhileTheRepositoryIsFollowed(t *testing.T) {
	dir := reloadable(t)
	if err := os.CopyFS(filepath.Join(dir, "twin"), os.DirFS(filepath.Join(dir, "echo"))); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "simple", "config.pbtxt")
	simple, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, dir, "--model-control-mode=poll", "--repository-poll-secs=1")
	l := s.underLoad(t, "echo", "twin")
	for i := range 3 {
		output := []string{"z", "y"}[i%2]
		rewrite(t, filepath.Join(dir, "echo", "config.pbtxt"), swapping(output))
		rewrite(t, filepath.Join(dir, "twin", "config.pbtxt"), swapping(output))
		rewrite(t, config, string(simple)+fmt.Sprintf(`parameters { key: "reload" value { string_value: "%d" } }`, i))
		for _, model := range []string{"echo", "twin"} {
			s.until("the new configuration", s.HTTP+"/v2/models/"+model, func(text string) bool { return strings.Contains(text, `"name":"`+output+`"`) })
		}
		s.until("the new configuration", s.HTTP+"/v2/models/simple/config", func(text string) bool {
			return strings.Contains(text, fmt.Sprintf(`"reload":{"string_value":"%d"}`, i))
		})
		l.more(20)
	}
	l.end()
}

// until asks for a path until its answer holds.
func (s *server) until(what, path string, holds func(text string) bool) {
	s.t.Helper()
	s.eventually(what, func() bool {
		_, text := s.do(http.MethodGet, path, "")
		return holds(text)
	})
}
