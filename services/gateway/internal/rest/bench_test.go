package rest_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/invariant"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// sink is a ResponseWriter that costs nothing.
type sink struct{ header http.Header }

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(b []byte) (int, error) { return len(b), nil }
func (s *sink) WriteHeader(int)             {}

func (s *sink) SetReadDeadline(time.Time) error  { return nil }
func (s *sink) SetWriteDeadline(time.Time) error { return nil }

// smallRequest is 16 int32s twice, in JSON.
func smallRequest() request {
	return request{path: "/v2/models/simple/infer", body: `{"inputs":[` +
		`{"name":"INPUT0","datatype":"INT32","shape":[1,16],"data":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]},` +
		`{"name":"INPUT1","datatype":"INT32","shape":[1,16],"data":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}]}`}
}

// largeRequest is an image of 224×224 pixels, as bytes.
func largeRequest() request {
	const n = 3 * 224 * 224
	json := fmt.Sprintf(`{"parameters":{"binary_data_output":true},"inputs":[{"name":"IN","datatype":"FP32","shape":[%d],"parameters":{"binary_data_size":%d}}]}`, n, 4*n)
	return request{path: "/v2/models/echo/infer", header: map[string]string{"Inference-Header-Content-Length": strconv.Itoa(len(json))}, body: json + strings.Repeat("abcd", n)}
}

// again returns a function that makes the same request to s again and again.
func again(tb testing.TB, s *server, q request) func() {
	body := strings.NewReader(q.body)
	r := httptest.NewRequest(http.MethodPost, q.path, body)
	for k, v := range q.header {
		r.Header.Set(k, v)
	}
	w := &sink{header: http.Header{}}
	return func() {
		if _, err := body.Seek(0, io.SeekStart); err != nil {
			tb.Fatal(err)
		}
		r.Body = io.NopCloser(body)
		s.ServeHTTP(w, r)
	}
}

func BenchmarkInfer(b *testing.B) {
	for name, q := range map[string]request{"16 int32 in JSON": smallRequest(), "150528 fp32 in bytes": largeRequest()} {
		b.Run(name, func(b *testing.B) {
			run := again(b, newServer(b, []*core.Model{simple(16), echo(tensor.FP32, -1)}), q)
			b.SetBytes(int64(len(q.body)))
			b.ReportAllocs()
			for b.Loop() {
				run()
			}
		})
	}
}

// A request's allocations have a ceiling, whatever its size. Some of them are
// the stand-in scheduler's.
func TestAllocationsStayFew(t *testing.T) {
	if invariant.Enabled {
		t.Skip("the race detector makes pools forget, so that they allocate")
	}
	const ceiling = 19 // one is the id of the request for its header, one the count of its head
	for name, q := range map[string]request{"small": smallRequest(), "large": largeRequest()} {
		run := again(t, newServer(t, []*core.Model{simple(16), echo(tensor.FP32, -1)}), q)
		if got := testing.AllocsPerRun(100, run); got > ceiling {
			t.Errorf("%s: %v allocations, want at most %d", name, got, ceiling)
		}
	}
}
