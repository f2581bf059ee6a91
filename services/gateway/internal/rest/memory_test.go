package rest_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/rest"
)

// measuring is a body that ends early and notes the most memory in use while it
// is read.
type measuring struct {
	io.Reader
	pool *tensor.Pool
	most int64
}

func (m *measuring) Read(p []byte) (int, error) {
	m.most = max(m.most, m.pool.Stats().InUse)
	return m.Reader.Read(p)
}

// A body holds memory for what has come of it, whatever size it announces.
func TestAnnouncedBytesHoldNoMemory(t *testing.T) {
	const announced, sent = 1 << 30, 3 << 20
	json := fmt.Sprintf(`{"inputs":[{"name":"IN","datatype":"UINT8","shape":[%d],"parameters":{"binary_data_size":%d}}]}`, announced, announced)
	for name, c := range map[string]struct{ prefix, length string }{
		"a tensor after JSON": {json, fmt.Sprint(len(json))},
		"a raw input":         {"", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, []*core.Model{echo(tensor.Uint8, -1)}, func(o *rest.Options) { o.MaxInput = 2 << 30 })
			body := &measuring{Reader: strings.NewReader(c.prefix + strings.Repeat("x", sent)), pool: s.pool}
			r := httptest.NewRequest(http.MethodPost, "/v2/models/echo/infer", body)
			r.ContentLength = int64(len(c.prefix)) + announced
			r.Header.Set("Inference-Header-Content-Length", c.length)
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			if w.Code != http.StatusBadRequest {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if body.most > 5*sent { // eight times the first MiB, and that
				t.Errorf("%d bytes were held for %d that came", body.most, sent)
			}
			s.checkMemory(t)
		})
	}
}

// Tensors larger than the pieces arrive whole.
func TestTensorsOfManyPiecesArriveWhole(t *testing.T) {
	s := newServer(t, []*core.Model{echo(tensor.Uint8, -1)}, func(o *rest.Options) { o.MaxInput = 64 << 20 })
	q := bytesIn(11<<20 + 3)
	data := []byte(q.body)
	for i := len(data) - (11<<20 + 3); i < len(data); i++ {
		data[i] = byte(i * i >> 8)
	}
	q.body = string(data)
	got := s.do(q, "Inference-Header-Content-Length")
	var length int
	if _, err := fmt.Sscan(got.Header["Inference-Header-Content-Length"], &length); err != nil || got.Status != http.StatusOK {
		t.Fatalf("%d, %v", got.Status, err)
	}
	if got.Body[length:] != q.body[len(q.body)-(11<<20+3):] {
		t.Error("the tensor is another")
	}
	s.checkMemory(t)
}

// The text of a response counts in the budget before it is made.
func TestTheTextOfAResponseCounts(t *testing.T) {
	for datatype, output := range map[tensor.Datatype]struct {
		shape tensor.Shape
		data  []byte
	}{
		tensor.FP32:  {tensor.Shape{1 << 20}, []byte(strings.Repeat("\x12\x34\x56\x3e", 1<<20))},
		tensor.Bytes: {tensor.Shape{1}, tensor.AppendBytes(nil, strings.Repeat("x", 4<<20))},
	} {
		for limit, want := range map[int64]int{7 << 20: http.StatusServiceUnavailable, 32 << 20: http.StatusOK} {
			budget, with := budgetOf(limit)
			s := newServer(t, []*core.Model{echo(datatype, -1)}, with)
			s.scheduler.execute = func(*infer.Request) *infer.Response {
				return &infer.Response{Outputs: []infer.Tensor{{Name: "OUT", Datatype: datatype, Shape: output.shape, Data: tensor.InHeap(output.data)}}}
			}
			in := `[0.5]`
			if datatype == tensor.Bytes {
				in = `["a"]`
			}
			got := s.do(request{path: "/v2/models/echo/infer", body: fmt.Sprintf(`{"inputs":[{"name":"IN","datatype":"%s","shape":[1],"data":%s}]}`, datatype, in)})
			if got.Status != want || want != http.StatusOK && !strings.Contains(got.Body, "would exceed the maximum") {
				t.Errorf("%s with %d: %d %.100s", datatype, limit, got.Status, got.Body)
			}
			if budget.Reserved() != 0 {
				t.Errorf("%s: %d bytes are held", datatype, budget.Reserved())
			}
		}
	}
}

// panicking returns the stages with a panic in the place of one.
func panicking(name string, after bool) []path.Stage {
	stages := path.Stages()
	for i := range stages {
		if run := stages[i].Run; stages[i].Name == name {
			stages[i].Run = func(c *path.Call) error {
				if after {
					_ = run(c)
				}
				panic("a bug")
			}
		}
	}
	return stages
}

func TestAPanicEndsOneRequest(t *testing.T) {
	budget, with := budgetOf(1 << 20)
	s := newServer(t, []*core.Model{echo(tensor.Uint8, -1)}, with, func(o *rest.Options) { o.Stages = panicking("check", true) })
	got := s.do(bytesIn(20_000))
	if got.Status != http.StatusInternalServerError || !strings.Contains(got.Body, `"error":"internal error"`) {
		t.Errorf("%d %s", got.Status, got.Body)
	}
	if len(s.logged) != 1 || !strings.Contains(s.logged[0].Error(), "a bug") || !strings.Contains(s.logged[0].Error(), "memory_test.go") {
		t.Errorf("the log has %v, without the panic's stack", s.logged)
	}
	if budget.Reserved() != 0 {
		t.Errorf("%d bytes are held", budget.Reserved())
	}
	s.checkMemory(t)
}

// A response that has begun cannot become an error: its connection is closed.
func TestAPanicInAResponseClosesTheConnection(t *testing.T) {
	s := newServer(t, []*core.Model{echo(tensor.Uint8, -1)}, func(o *rest.Options) { o.Stages = panicking("stream", true) })
	web := httptest.NewServer(s)
	q := bytesIn(20_000)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, web.URL+q.path, strings.NewReader(q.body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range q.header {
		r.Header.Set(k, v)
	}
	r.Close = true
	w, err := web.Client().Do(r)
	if err == nil {
		_, err = io.ReadAll(w.Body)
		_ = w.Body.Close()
	}
	web.Close() // and the handler has returned
	if len(s.logged) != 1 {
		t.Errorf("logged %v after %v", s.logged, err)
	}
}
