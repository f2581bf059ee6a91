package rest_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/requests"
	"github.com/nereid-serving/nereid/services/gateway/internal/rest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scheduler stands in for the dispatcher: it responds at once by
// execute, unless submit refuses.
type scheduler struct {
	table   *requests.Table
	submit  func(*infer.Request) error
	execute func(*infer.Request) *infer.Response
	cancel  func(infer.RequestID)
	counts  map[string]infer.Statistics // by model
}

func (s *scheduler) Statistics(_ context.Context, refs []infer.ModelRef) ([]infer.Statistics, error) {
	list := make([]infer.Statistics, len(refs))
	for i, ref := range refs {
		list[i] = s.counts[ref.Name]
	}
	return list, nil
}

func (s *scheduler) Submit(q *infer.Request) error {
	if s.submit != nil {
		if err := s.submit(q); err != nil {
			return err
		}
	}
	if s.execute == nil {
		return nil
	}
	p := s.execute(q)
	p.Work, p.Final = q.Work, true
	q.Release()
	s.table.Respond(p)
	return nil
}

func (s *scheduler) Cancel(id infer.RequestID) {
	if s.cancel != nil {
		s.cancel(id)
	}
}

// server is a real gateway without workers behind the front end.
type server struct {
	http.Handler
	gateway   *core.Gateway
	scheduler *scheduler
	pool      *tensor.Pool
	logged    []error
}

func newServer(t testing.TB, models []*core.Model, options ...func(*rest.Options)) *server {
	t.Helper()
	return newServerWith(t, nil, models, nil, options...)
}

// newServerOn is a server without models that depends on other things.
func newServerOn(t testing.TB, depend ...func(*core.Deps)) *server {
	t.Helper()
	return newServerWith(t, nil, nil, depend)
}

// newServerOf is a server without models behind which a registry stands.
func newServerOf(t testing.TB, r core.Repository, options ...func(*rest.Options)) *server {
	t.Helper()
	return newServerWith(t, r, nil, nil, options...)
}

func newServerWith(t testing.TB, r core.Repository, models []*core.Model, depend []func(*core.Deps), options ...func(*rest.Options)) *server {
	t.Helper()
	table := requests.New(7)
	s := &server{scheduler: &scheduler{table: table, execute: compute}, pool: tensor.NewPool(16 << 20)}
	deps := core.Deps{Dispatcher: s.scheduler, Statistics: func(string) core.StatisticsSource { return s.scheduler }, Repository: r, Requests: table, Clock: mono.New(), Pool: s.pool, StrictReadiness: true}
	for _, set := range depend {
		set(&deps)
	}
	s.gateway = core.New(core.ServerInfo{Name: "nereid", Version: "0.1.0", Extensions: []string{"binary_tensor_data", "parameters"}}, deps)
	s.gateway.Update(core.NewSnapshot(3, true, models))
	o := rest.Options{Options: path.Options{Log: func(_ string, err error) { s.logged = append(s.logged, err) }}}
	for _, set := range options {
		set(&o)
	}
	s.Handler = rest.New(s.gateway, o)
	return s
}

// checkMemory fails the test if mapped tensor memory has not come back.
func (s *server) checkMemory(t *testing.T) {
	t.Helper()
	if n := s.pool.Stats().InUse; n != 0 {
		t.Errorf("%d bytes of tensor memory are still in use", n)
	}
}

// request is one call in a table of cases.
type request struct {
	method, path string
	header       map[string]string
	body         string
}

// response is what matters of an HTTP response.
type response struct {
	Status int
	Header map[string]string // those of the expected response
	Body   string
}

func (s *server) do(q request, headers ...string) response {
	if q.method == "" {
		q.method = http.MethodPost
	}
	r := httptest.NewRequest(q.method, q.path, strings.NewReader(q.body))
	for k, v := range q.header {
		r.Header.Set(k, v)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	a := response{Status: w.Code, Body: w.Body.String()}
	for _, k := range headers {
		if a.Header == nil {
			a.Header = map[string]string{}
		}
		a.Header[k] = w.Header().Get(k)
	}
	return a
}

// refusal is what a refused call comes to: Triton's body, and the reason in a
// header.
func refusal(status int, text, reason string) response {
	return response{Status: status, Header: map[string]string{"Content-Type": "application/json", "Nereid-Reason": reason, "Nereid-Request-Id": ""}, Body: `{"error":"` + text + `"}`}
}

// inferRefusal is a refusal of the first inference, which has an id by then.
func inferRefusal(status int, text, reason string) response {
	a := refusal(status, text, reason)
	a.Header["Nereid-Request-Id"] = "7-1"
	return a
}

// doLike asks for the headers that want has.
func (s *server) doLike(q request, want response) response {
	return s.do(q, slices.Collect(maps.Keys(want.Header))...)
}

// model makes a model with one version that serves.
func model(name string, batch int64, inputs, outputs []modelconfig.IO) *core.Model {
	c := &modelconfig.Config{Name: name, Platform: "onnxruntime_onnx", Backend: "onnxruntime", MaxBatchSize: batch, Inputs: inputs, Outputs: outputs}
	return &core.Model{Name: name, Versions: []*core.Version{
		{Ref: infer.ModelRef{Name: name, Version: 1}, Config: c, State: infer.Ready},
	}}
}

func tensorIO(name string, d tensor.Datatype, dims ...int64) modelconfig.IO {
	return modelconfig.IO{Name: name, Datatype: d, Dims: dims}
}

// simple is the model of Triton's examples: two inputs, their sum and their
// difference.
func simple(dims ...int64) *core.Model {
	io := func(name string) modelconfig.IO { return tensorIO(name, tensor.Int32, dims...) }
	return model("simple", 8, []modelconfig.IO{io("INPUT0"), io("INPUT1")}, []modelconfig.IO{io("OUTPUT0"), io("OUTPUT1")})
}

// echo gives its one input IN back as OUT.
func echo(d tensor.Datatype, dims ...int64) *core.Model {
	return model("echo", 0, []modelconfig.IO{tensorIO("IN", d, dims...)}, []modelconfig.IO{tensorIO("OUT", d, dims...)})
}

// compute does what the models above do.
func compute(q *infer.Request) *infer.Response {
	p := &infer.Response{Parameters: q.Parameters}
	if q.Model.Name == "echo" {
		in := q.Inputs[0]
		p.Outputs = []infer.Tensor{{Name: "OUT", Datatype: in.Datatype, Shape: in.Shape, Data: in.Data.Retain()}}
		return p
	}
	var ins [2][]byte
	for i := range q.Inputs {
		ins[q.Inputs[i].Name[5]-'0'], _ = q.Inputs[i].Data.Bytes()
	}
	sum, difference := make([]byte, len(ins[0])), make([]byte, len(ins[0]))
	for i := 0; i < len(sum); i += 4 {
		a, b := binary.LittleEndian.Uint32(ins[0][i:]), binary.LittleEndian.Uint32(ins[1][i:])
		binary.LittleEndian.PutUint32(sum[i:], a+b)
		binary.LittleEndian.PutUint32(difference[i:], a-b)
	}
	for i, data := range [][]byte{sum, difference} {
		name := []string{"OUTPUT0", "OUTPUT1"}[i]
		if q.Wants(name) {
			p.Outputs = append(p.Outputs, infer.Tensor{Name: name, Datatype: tensor.Int32, Shape: q.Inputs[0].Shape, Data: tensor.InHeap(data)})
		}
	}
	return p
}

func int32s(values ...int32) string {
	var b bytes.Buffer
	_ = binary.Write(&b, binary.LittleEndian, values)
	return b.String()
}

func readAll(t *testing.T, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
