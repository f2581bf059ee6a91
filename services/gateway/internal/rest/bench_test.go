package rest_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// sink is a ResponseWriter that costs nothing.
type sink struct{ header http.Header }

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(b []byte) (int, error) { return len(b), nil }
func (s *sink) WriteHeader(int)             {}

func BenchmarkInfer(b *testing.B) {
	small := request{path: "/v2/models/simple/infer", body: `{"inputs":[` +
		`{"name":"INPUT0","datatype":"INT32","shape":[1,16],"data":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]},` +
		`{"name":"INPUT1","datatype":"INT32","shape":[1,16],"data":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}]}`}
	const n = 150528
	json := fmt.Sprintf(`{"parameters":{"binary_data_output":true},"inputs":[{"name":"IN","datatype":"FP32","shape":[%d],"parameters":{"binary_data_size":%d}}]}`, n, 4*n)
	large := request{path: "/v2/models/echo/infer", header: map[string]string{"Inference-Header-Content-Length": strconv.Itoa(len(json))}, body: json + strings.Repeat("abcd", n)}
	for name, q := range map[string]request{"16 int32 in JSON": small, "150528 fp32 in bytes": large} {
		b.Run(name, func(b *testing.B) {
			s := newServer(b, []*core.Model{simple(16), echo(tensor.FP32, -1)})
			body := bytes.NewReader([]byte(q.body))
			r := httptest.NewRequest(http.MethodPost, q.path, body)
			for k, v := range q.header {
				r.Header.Set(k, v)
			}
			w := &sink{header: http.Header{}}
			b.SetBytes(int64(len(q.body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := body.Seek(0, io.SeekStart); err != nil {
					b.Fatal(err)
				}
				s.ServeHTTP(w, r)
			}
		})
	}
}
