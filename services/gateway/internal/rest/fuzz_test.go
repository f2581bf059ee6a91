package rest_test

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/rest"
)

// FuzzPath sends any path with any method: there is a response, and its headers
// are right.
func FuzzPath(f *testing.F) {
	for _, path := range []string{
		"/v2", "/v2/models/echo/versions/1/ready", "/v2/models/e%63ho", "/v2/models/a%2Fb/config", "/v2/models//stats", "/v2/models/%ff/infer",
		"/v2/repository/index", "/v2/repository/r/models/echo/load", "/v2/systemsharedmemory/region/%00/status", "/v2/models/echo/versions/18446744073709551616?a=%zz",
	} {
		f.Add(http.MethodGet, path)
		f.Add(http.MethodPost, path)
	}
	s := newServer(f, []*core.Model{echo(tensor.FP32, -1)})
	f.Fuzz(func(t *testing.T, method, path string) {
		where, err := url.ParseRequestURI(path)
		if err != nil {
			return // net/http refuses these
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, (&http.Request{Method: method, URL: where, Header: http.Header{}, Body: http.NoBody}).WithContext(t.Context()))
		body := w.Body.Bytes()
		if w.Code == http.StatusInternalServerError || len(body) > 0 && !json.Valid(body) {
			t.Errorf("%s %q: %d %q", method, path, w.Code, body)
		}
	})
}

// FuzzEncoded sends any bytes as compressed bodies and accepts any coding of the
// response.
func FuzzEncoded(f *testing.F) {
	const body = `{"inputs":[{"name":"IN","datatype":"FP32","shape":[2],"data":[1,2]}]}`
	for _, part := range []int{0, 10, len(body)} {
		var zipped, deflated bytes.Buffer
		for w, encoded := range map[io.WriteCloser]*bytes.Buffer{gzip.NewWriter(&zipped): &zipped, zlib.NewWriter(&deflated): &deflated} {
			_, _ = w.Write([]byte(body[:part]))
			_ = w.Close()
			for _, accept := range []string{"", "gzip;q=0.5, deflate", "identity;q=0,*"} {
				f.Add(encoded == &zipped, accept, encoded.Bytes())
			}
		}
	}
	const limit = 1 << 20
	s := newServer(f, []*core.Model{echo(tensor.FP32, -1)}, func(o *rest.Options) { o.MaxInput = limit })
	f.Fuzz(func(t *testing.T, zipped bool, accept string, body []byte) {
		encoding := "deflate"
		if zipped {
			encoding = "gzip"
		}
		a := s.do(request{path: "/v2/models/echo/infer", body: string(body), header: map[string]string{"Content-Encoding": encoding, "Accept-Encoding": accept}}, "Content-Encoding")
		if a.Header["Content-Encoding"] == "" && !json.Valid([]byte(a.Body)) || len(s.logged) > 0 {
			t.Errorf("%q, %q: %+v, %v", accept, body, a, s.logged)
		}
		s.checkMemory(t)
	})
}
