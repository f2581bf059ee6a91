package rest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/serve"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/rest"
)

// talker is a model of texts, as language models are: TEXT comes back as OUT with the
// parameters, and X, which is optional, as Y with its shape as S.
func talker() *core.Model {
	m := model("talk", 0,
		[]modelconfig.IO{tensorIO("TEXT", tensor.Bytes, -1), tensorIO("X", tensor.FP32, -1, 2, -1)},
		[]modelconfig.IO{tensorIO("OUT", tensor.Bytes, -1), tensorIO("Y", tensor.FP32, -1, 2, -1), tensorIO("S", tensor.Int64, -1)})
	m.Versions[0].Config.Inputs[1].Optional = true
	return m
}

func talk(q *infer.Request) *infer.Response {
	p := &infer.Response{Parameters: q.Parameters}
	for _, in := range q.Inputs {
		out := infer.Tensor{Name: "OUT", Datatype: in.Datatype, Shape: in.Shape, Data: in.Data.Retain()}
		if in.Name == "X" {
			out.Name = "Y"
			p.Outputs = append(p.Outputs, int64s("S", in.Shape...))
		}
		p.Outputs = append(p.Outputs, out)
	}
	return p
}

func int64s(name string, values ...int64) infer.Tensor {
	var data []byte
	for _, v := range values {
		data = append(data, byte(v), byte(v>>8), 0, 0, 0, 0, 0, 0)
	}
	return infer.Tensor{Name: name, Datatype: tensor.Int64, Shape: tensor.Shape{int64(len(values))}, Data: tensor.InHeap(data)}
}

// counter is a decoupled model that gives N responses with their numbers.
func counter() *core.Model {
	m := model("count", 0, []modelconfig.IO{tensorIO("N", tensor.Int32, 1)}, []modelconfig.IO{tensorIO("I", tensor.Int64, 1)})
	m.Versions[0].Config.Decoupled = true
	return m
}

// newCounter is a server whose decoupled model gives as many responses as it is asked for,
// and an error after them if the number is negative.
func newCounter(t testing.TB, options ...func(*rest.Options)) *server {
	s := newServer(t, []*core.Model{counter()}, options...)
	s.scheduler.execute = nil
	s.scheduler.submit = func(q *infer.Request) error {
		data, _ := q.Inputs[0].Data.Bytes()
		n := int(int8(data[0])) //nolint:gosec // a small number
		work := q.Work
		q.Release()
		for i := range max(n, -n) {
			s.scheduler.table.Respond(&infer.Response{Work: work, Outputs: []infer.Tensor{int64s("I", int64(i))}})
		}
		if n < 0 {
			s.scheduler.table.Finish(infer.Fail(work, errs.New(errs.ExecutionFailed, "bad")))
			return nil
		}
		s.scheduler.table.Respond(&infer.Response{Work: work, Final: true})
		return nil
	}
	return s
}

// What Triton responds was recorded from its server of release 2.51.
func TestGenerate(t *testing.T) {
	tests := map[string]struct {
		body, want string
		status     int
		header     map[string]string
	}{
		"one text":          {body: `{"TEXT":"hello"}`, want: `{"OUT":"hello",`},
		"several texts":     {body: `{"TEXT":["a","b"]}`, want: `{"OUT":["a","b"],`},
		"no texts":          {body: `{"TEXT":[]}`, want: `{"OUT":[],`},
		"an id":             {body: `{"TEXT":"a","id":"q1"}`, want: `{"OUT":"a","id":"q1",`},
		"parameters":        {body: `{"TEXT":"a","b":true,"n":3,"s":"x","z":0.5}`, want: `{"OUT":"a","b":true,"model_name":"talk","model_version":"1","n":3,"s":"x","z":0.5}`},
		"nested parameters": {body: `{"TEXT":"a","parameters":{"k":1,"id":"z"}}`, want: `{"OUT":"a","id":"z","k":1,`},
		"a nested input":    {body: `{"parameters":{"TEXT":"a","k":"v"}}`, want: `{"OUT":"a","k":"v",`},
		"reserved names":    {body: `{"TEXT":"a","sequence_id":1,"priority":5,"timeout":"x","triton_x":1}`, want: `{"OUT":"a","model_name":"talk","model_version":"1","priority":5,"sequence_id":1,"timeout":"x","triton_x":1}`},
		"a parameter like a name of the response": {body: `{"TEXT":"a","OUT":7,"model_name":8}`, want: `{"OUT":7,`},
		"a shape of the model's":                  {body: `{"TEXT":"a","X":[1,2,3,4]}`, want: `{"OUT":"a","S":[1,2,2],"Y":[1.0,2.0,3.0,4.0],`},
		"nested arrays":                           {body: `{"TEXT":"a","X":[[1,2],[3,4]]}`, want: `{"OUT":"a","S":[1,2,2],"Y":[1.0,2.0,3.0,4.0],`},
		"an empty tensor":                         {body: `{"TEXT":"a","X":[]}`, want: `{"OUT":"a","S":[1,2,0],"Y":[],`},
		"another content coding is none":          {body: `{"TEXT":"a"}`, want: `{"OUT":"a",`, header: map[string]string{"Content-Encoding": "identity"}},

		"no shape for so many":         {status: 400, body: `{"TEXT":"a","X":[1,2,3]}`, want: "The schema can not convert input 'X' to tensor with proper shape"},
		"no shape for one":             {status: 400, body: `{"TEXT":"a","X":"s"}`, want: "The schema can not convert input 'X' to tensor with proper shape"},
		"null for a number":            {status: 500, body: `{"TEXT":"a","X":[null,1]}`, want: "Unable to parse 'data': attempt to access JSON non-number as double"},
		"a number for a text":          {status: 500, body: `{"TEXT":5}`, want: "Unable to parse JSON bytes array: attempt to access JSON non-string as string"},
		"an id that is a number":       {status: 500, body: `{"TEXT":"a","id":7}`, want: "Unable to parse 'id': attempt to access JSON non-string as string"},
		"a parameter of null":          {status: 400, body: `{"TEXT":"a","k":null}`, want: "parameter 'k' has invalid type. It should be either 'int', 'bool', or 'string'."},
		"a parameter that is an array": {status: 400, body: `{"TEXT":"a","k":[1]}`, want: "parameter 'k' has invalid type. It should be either 'int', 'bool', or 'string'."},
		"parameters within parameters": {status: 400, body: `{"parameters":{"TEXT":"a","parameters":{}}}`, want: "Converting keyword: 'parameters': parameter 'parameters' has invalid type. It should be either 'int', 'bool', or 'string'."},
		"parameters that are a number": {status: 500, body: `{"TEXT":"a","parameters":5}`, want: "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object"},
		"an input twice":               {status: 400, body: `{"TEXT":"a","TEXT":"b"}`, want: "[request id: <id_unknown>] input 'TEXT' already exists in request"},
		"no input": {status: 400, body: `{}`, want: "[request id: <id_unknown>] expected number of inputs between 1 and 2 but got 0 inputs for model 'talk'. " +
			"Got input(s) [], but missing required input(s) ['TEXT']. Please provide all required input(s)."},
		"no body":                        {status: 500, want: "failed to parse the request JSON buffer: The document is empty. at 0"},
		"an array":                       {status: 500, body: `[]`, want: "attempt to get members for non-object"},
		"a cut-off object":               {status: 500, body: `{"TEXT":`, want: "failed to parse the request JSON buffer: Invalid value. at 8"},
		"a cut-off object in parameters": {status: 500, body: `{"parameters":{"k":`, want: "failed to parse the request JSON buffer: Invalid value. at 19"},
		"too deep":                       {status: 400, body: `{"X":` + strings.Repeat("[", 200), want: "JSON nesting depth exceeds maximum allowed limit (100)"},
		"compressed":                     {status: 400, body: `{"TEXT":"a"}`, want: "Unsupported content-encoding, only 'identity' is supported.", header: map[string]string{"Content-Encoding": "gzip"}},
		"an empty coding":                {status: 400, body: `{"TEXT":"a"}`, want: "Unsupported content-encoding, only 'identity' is supported.", header: map[string]string{"Content-Encoding": ""}},
		"too large":                      {status: 400, body: `{"TEXT":"` + strings.Repeat("a", 1000) + `"}`, want: "request JSON size of 1011 bytes exceeds the maximum allowed value of 1000 bytes. Use --http-max-input-size to increase the limit."},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, []*core.Model{talker()}, func(o *rest.Options) { o.MaxInput = 1000 })
			s.scheduler.execute = talk
			got := s.do(request{path: "/v2/models/talk/generate", body: c.body, header: c.header}, "Content-Type")
			want := response{Status: 200, Header: map[string]string{"Content-Type": "application/json"}, Body: c.want}
			switch {
			case c.status != 0:
				want.Status, want.Body = c.status, `{"error":"`+c.want+`"}`
			case strings.HasSuffix(c.want, ","):
				want.Body += `"model_name":"talk","model_version":"1"}`
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
			s.checkMemory(t)
		})
	}
}

func TestGenerateRefusesParametersWhereTheyAreAnInput(t *testing.T) {
	s := newServer(t, []*core.Model{model("m", 0, []modelconfig.IO{tensorIO("parameters", tensor.Int32, 1)}, nil)})
	want := inferRefusal(400, "Keyword 'parameters' for nested schema also given as input tensor name", "invalid_parameter")
	if d := cmp.Diff(want, s.doLike(request{path: "/v2/models/m/generate", body: `{"parameters":{}}`}, want)); d != "" {
		t.Error(d)
	}
}

// Half precision has no JSON, as with inferences.
func TestGenerateRefusesHalfPrecision(t *testing.T) {
	s := newServer(t, []*core.Model{echo(tensor.FP16, -1)})
	want := inferRefusal(400, "receiving FP16 data via JSON is not supported. Please use the binary data format for input IN", "tensor_data_invalid")
	if d := cmp.Diff(want, s.doLike(request{path: "/v2/models/echo/generate", body: `{"IN":1}`}, want)); d != "" {
		t.Error(d)
	}
	s.scheduler.execute = func(*infer.Request) *infer.Response {
		return &infer.Response{Outputs: []infer.Tensor{{Name: "OUT", Datatype: tensor.FP16, Shape: tensor.Shape{1}, Data: tensor.InHeap(make([]byte, 2))}}}
	}
	want = inferRefusal(400, "sending FP16 data via JSON is not supported. Please use the binary data format for output", "invalid_parameter")
	want.Header["Nereid-Request-Id"] = "7-2"
	if d := cmp.Diff(want, s.doLike(request{path: "/v2/models/echo/generate", body: `{"IN":[]}`}, want)); d != "" {
		t.Error(d)
	}
}

func TestGenerateTakesDecoupledModelsThatRespondOnce(t *testing.T) {
	const several = `{"error":"generate expects model to produce exactly 1 response, use generate stream for model that generates various number of responses"}`
	for n, want := range map[int]response{
		1:  {Status: 200, Body: `{"I":0,"model_name":"count","model_version":"1"}`},
		0:  {Status: 500, Body: several},
		2:  {Status: 500, Body: several},
		-1: {Status: 500, Body: `{"error":"bad"}`},
	} {
		s := newCounter(t)
		if d := cmp.Diff(want, s.do(request{path: "/v2/models/count/generate", body: `{"N":` + strconv.Itoa(n) + `}`})); d != "" {
			t.Errorf("%d responses:\n%s", n, d)
		}
		if n := s.gateway.InFlight(); n != 0 {
			t.Errorf("%d requests are in flight", n)
		}
	}
}

func TestGenerateStream(t *testing.T) {
	for name, c := range map[string]struct {
		body, want string
		kind       string
		status     int
	}{
		"responses": {`{"N":2,"id":"q"}`, `data: {"I":0,"id":"q","model_name":"count","model_version":"1"}` + "\n\n" +
			`data: {"I":1,"id":"q","model_name":"count","model_version":"1"}` + "\n\n", "text/event-stream; charset=utf-8", 200},
		"none":              {`{"N":0}`, "", "text/event-stream; charset=utf-8", 200},
		"an error after":    {`{"N":-1}`, `data: {"I":0,"model_name":"count","model_version":"1"}` + "\n\n" + `data: {"error":"bad"}` + "\n\n", "text/event-stream; charset=utf-8", 200},
		"an error at first": {`{"N":-0,"boom":true}`, `data: {"error":"bad"}` + "\n\n", "text/event-stream; charset=utf-8", 500},
		"a wrong request":   {`{"N":"x"}`, `{"error":"Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"}`, "application/json", 500},
	} {
		t.Run(name, func(t *testing.T) {
			s := newCounter(t)
			if name == "an error at first" {
				s.scheduler.submit = func(q *infer.Request) error {
					work := q.Work
					q.Release()
					s.scheduler.table.Finish(infer.Fail(work, errs.New(errs.ExecutionFailed, "bad")))
					return nil
				}
			}
			want := response{Status: c.status, Header: map[string]string{"Content-Type": c.kind, "Nereid-Request-Id": "7-1"}, Body: c.want}
			if d := cmp.Diff(want, s.doLike(request{path: "/v2/models/count/generate_stream", body: c.body}, want)); d != "" {
				t.Error(d)
			}
			s.checkMemory(t)
		})
	}
}

func TestGenerateStreamTakesModelsThatRespondOnce(t *testing.T) {
	s := newServer(t, []*core.Model{talker()})
	s.scheduler.execute = talk
	want := response{Status: 200, Body: `data: {"OUT":"a","model_name":"talk","model_version":"1"}` + "\n\n"}
	if d := cmp.Diff(want, s.do(request{path: "/v2/models/talk/versions/1/generate_stream", body: `{"TEXT":"a"}`})); d != "" {
		t.Error(d)
	}
}

// An event is with the client before the model gives the next one.
func TestEventsComeOneByOne(t *testing.T) {
	s := newCounter(t)
	var work infer.Work
	submitted := make(chan struct{})
	s.scheduler.submit = func(q *infer.Request) error {
		work = q.Work
		q.Release()
		close(submitted)
		return nil
	}
	web := httptest.NewServer(s)
	defer web.Close()
	go func() {
		<-submitted
		s.scheduler.table.Respond(&infer.Response{Work: work, Outputs: []infer.Tensor{int64s("I", 0)}})
	}()
	r, err := web.Client().Post(web.URL+"/v2/models/count/generate_stream", "", strings.NewReader(`{"N":1}`))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	in := bufio.NewReader(r.Body)
	if line, err := in.ReadString('\n'); !strings.HasPrefix(line, `data: {"I":0,`) || err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	s.scheduler.table.Respond(&infer.Response{Work: work, Final: true})
	if rest, err := io.ReadAll(in); string(rest) != "\n" || err != nil {
		t.Errorf("%q, %v", rest, err)
	}
}

func TestClientThatLeavesAStreamCancels(t *testing.T) {
	s := newCounter(t)
	canceled := make(chan infer.RequestID, 1)
	s.scheduler.cancel = func(id infer.RequestID) { canceled <- id }
	s.scheduler.submit = func(q *infer.Request) error {
		s.scheduler.table.Respond(&infer.Response{Work: q.Work, Outputs: []infer.Tensor{int64s("I", 0)}})
		q.Release()
		return nil
	}
	web := httptest.NewServer(s)
	defer web.Close()
	ctx, leave := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, web.URL+"/v2/models/count/generate_stream", strings.NewReader(`{"N":1}`))
	if err != nil {
		t.Fatal(err)
	}
	a, err := web.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(a.Body).ReadString('\n'); !strings.HasPrefix(line, "data: ") || err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	leave()
	if id := <-canceled; id.Number != 1 {
		t.Errorf("canceled %v", id)
	}
	if _, err := io.ReadAll(a.Body); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	_ = a.Body.Close()
}

// A client that does not read its events loses them, and the request with its memory, while
// another is served.
func TestClientThatDoesNotReadEventsIsGivenUp(t *testing.T) {
	budget := memory.NewBudget(64 << 20)
	s := newCounter(t, func(o *rest.Options) { o.Budget = budget })
	const size = 32 << 20 // more than the sockets' buffers hold, of JSON a quarter more
	one := s.scheduler.submit
	canceled := make(chan struct{})
	s.scheduler.cancel = func(infer.RequestID) { close(canceled) }
	s.scheduler.submit = func(q *infer.Request) error {
		if q.ID == "" {
			return one(q)
		}
		work := q.Work
		q.Release()
		s.scheduler.table.Respond(&infer.Response{Work: work, Outputs: []infer.Tensor{{
			Name: "I", Datatype: tensor.Bytes, Shape: tensor.Shape{1}, Data: tensor.InHeap(append([]byte{0, 0, 0, size >> 24}, make([]byte, size)...)),
		}}})
		return nil
	}
	web := httptest.NewUnstartedServer(s)
	web.Listener = serve.WithWriteTimeout(web.Listener, time.Second)
	web.Start()
	c, err := net.Dial("tcp", web.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const body = `{"N":1,"id":"deaf"}`
	if _, err := io.WriteString(c, "POST /v2/models/count/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+body); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 12)); err != nil { // the response has begun
		t.Fatal(err)
	}
	if a := s.do(request{path: "/v2/models/count/generate", body: `{"N":1}`}); a.Status != 200 {
		t.Errorf("another client: %+v", a)
	}
	<-canceled
	web.Close() // waits for the request
	if n := budget.Reserved(); n != 0 {
		t.Errorf("%d bytes are still charged", n)
	}
}

// However many responses there are, what they become is charged once at a time.
func TestEventsAreChargedOneAtATime(t *testing.T) {
	budget := memory.NewBudget(8 << 20)
	s := newCounter(t, func(o *rest.Options) { o.Budget = budget })
	const size, count = 1 << 20, 20 // whose JSON takes more than is kept for the next call
	works := make(chan infer.Work, 1)
	s.scheduler.submit = func(q *infer.Request) error {
		works <- q.Work
		q.Release()
		return nil
	}
	web := httptest.NewServer(s)
	defer web.Close()
	text := append([]byte{0, 0, size >> 16, 0}, strings.Repeat("x", size)...)
	respond := func(work infer.Work) {
		s.scheduler.table.Respond(&infer.Response{Work: work, Outputs: []infer.Tensor{{
			Name: "I", Datatype: tensor.Bytes, Shape: tensor.Shape{1}, Data: tensor.InHeap(text),
		}}})
	}
	var work infer.Work
	submitted := make(chan struct{})
	go func() {
		work = <-works
		respond(work)
		close(submitted)
	}()
	r, err := web.Client().Post(web.URL+"/v2/models/count/generate_stream", "", strings.NewReader(`{"N":1}`))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	<-submitted
	in := bufio.NewReader(r.Body)
	for i := range count {
		line, err := in.ReadString('\n')
		if !strings.HasPrefix(line, `data: {"I":"xx`) || err != nil {
			t.Fatalf("event %d: %.80q, %v", i, line, err)
		}
		if _, err := in.Discard(1); err != nil {
			t.Fatal(err)
		}
		if i < count-1 {
			respond(work)
		}
	}
	s.scheduler.table.Respond(&infer.Response{Work: work, Final: true})
	if rest, err := io.ReadAll(in); len(rest) > 0 || err != nil {
		t.Errorf("%.80q, %v", rest, err)
	}
	web.Close()
	if n := budget.Reserved(); n != 0 {
		t.Errorf("%d bytes are still charged", n)
	}
}

func TestGenerateTellsTheLoad(t *testing.T) {
	for name, c := range map[string]struct {
		format, want string
		load         rest.CacheLoad
		known        bool
	}{
		"json":           {"json", `JSON {"named_metrics":{"kv_cache_utilization":0.25,"max_token_capacity":640}}`, rest.CacheLoad{Used: 10, Max: 40, TokensPerBlock: 16}, true},
		"text":           {"text", "TEXT named_metrics.kv_cache_utilization=0.250000, named_metrics.max_token_capacity=640", rest.CacheLoad{Used: 10, Max: 40, TokensPerBlock: 16}, true},
		"no blocks":      {"text", "TEXT named_metrics.kv_cache_utilization=0.000000, named_metrics.max_token_capacity=0", rest.CacheLoad{TokensPerBlock: 16}, true},
		"another format": {"xml", "", rest.CacheLoad{}, true},
		"not asked for":  {"", "", rest.CacheLoad{}, true},
		"not known":      {"json", "", rest.CacheLoad{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newCounter(t, func(o *rest.Options) { o.Load = func() (rest.CacheLoad, bool) { return c.load, c.known } })
			for _, endpoint := range []string{"generate", "generate_stream"} {
				q := request{path: "/v2/models/count/" + endpoint, body: `{"N":1}`, header: map[string]string{}}
				if c.format != "" {
					q.header["endpoint-load-metrics-format"] = c.format
				}
				if a := s.do(q, "Endpoint-Load-Metrics"); a.Status != 200 || a.Header["Endpoint-Load-Metrics"] != c.want {
					t.Errorf("%s: %+v", endpoint, a)
				}
			}
		})
	}
}

// FuzzGenerate sends any body to both endpoints: there is a response of the right kind, and
// nothing is held after it.
func FuzzGenerate(f *testing.F) {
	for _, body := range []string{
		`{"TEXT":"a","X":[[1,2],[3,4]],"id":"q","parameters":{"k":1,"TEXT":"b","id":2}}`, `{"TEXT":["a","\ud83d\ude00"],"k":1e400}`,
		`{"X":[],"TEXT":null}`, `{"parameters":{"parameters":{}}}`, `[`, `{"X":[[[[]]],{}]}`, `{"TEXT":"a","X":[NaN,-Infinity]}`, "\ufeff{}",
	} {
		f.Add(body, true)
		f.Add(body, false)
	}
	s := newServer(f, []*core.Model{talker()})
	s.scheduler.execute = talk
	f.Fuzz(func(t *testing.T, body string, stream bool) {
		path := "/v2/models/talk/generate"
		if stream {
			path += "_stream"
		}
		a := s.do(request{path: path, body: body})
		text := a.Body
		if stream && a.Status == 200 {
			text = strings.TrimSuffix(strings.TrimPrefix(text, "data: "), "\n\n")
		}
		number := strings.Contains(text, "NaN") || strings.Contains(text, "Infinity") // which JSON has not
		if !json.Valid([]byte(text)) && !number || strings.Contains(text, "\n") || len(s.logged) > 0 {
			t.Errorf("%q: %+v, %v", body, a, s.logged)
		}
		s.checkMemory(t)
	})
}
