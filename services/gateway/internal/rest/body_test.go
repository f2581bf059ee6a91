package rest_test

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/rest"
)

func TestUnknownCodingSaysWhichAreKnown(t *testing.T) {
	s := newServer(t, []*core.Model{simple(2)})
	got := s.do(request{path: "/v2/models/simple/infer", header: map[string]string{"Content-Encoding": "br"}}, "Accept-Encoding")
	if got.Header["Accept-Encoding"] != "gzip, deflate" {
		t.Errorf("Accept-Encoding: %q", got.Header["Accept-Encoding"])
	}
}

func compress(t *testing.T, encoding, text string) string {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser = gzip.NewWriter(&b)
	if encoding == "deflate" {
		w = zlib.NewWriter(&b)
	}
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func decompress(t *testing.T, encoding, data string) string {
	t.Helper()
	var r io.Reader = strings.NewReader(data)
	var err error
	switch encoding {
	case "gzip":
		r, err = gzip.NewReader(r)
	case "deflate":
		r, err = zlib.NewReader(r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return readAll(t, r)
}

func TestCompressedBodies(t *testing.T) {
	s := newServer(t, []*core.Model{simple(2)})
	plain := binaryBody(`"parameters":{"binary_data_output":true},`, int32s(1, 2)+int32s(10, -2))
	want := s.do(plain)
	for range 2 { // the second time with what the first left behind
		for _, in := range []string{"identity", "gzip", "deflate"} {
			for accept, out := range map[string]string{
				"": "", "identity": "", "gzip": "gzip", "deflate": "deflate", "gzip, deflate, br": "gzip", "br": "", "gzip;q=0": "",
				"gzip;q=0.2, deflate;q=0.8": "deflate", "deflate ; q=0.5,identity;q=0.9": "", "gzip;q=x": "", "gzip;level=1": "",
			} {
				q := request{path: plain.path, body: plain.body, header: map[string]string{"Content-Encoding": in, "Accept-Encoding": accept}}
				q.header["Inference-Header-Content-Length"] = plain.header["Inference-Header-Content-Length"]
				if in != "identity" {
					q.body = compress(t, in, plain.body)
				}
				got := s.do(q, "Content-Encoding", "Content-Length")
				if got.Header["Content-Encoding"] != out || got.Header["Content-Length"] != strconv.Itoa(len(got.Body)) {
					t.Errorf("%s, accepting %q: headers %v", in, accept, got.Header)
				}
				if body := decompress(t, out, got.Body); body != want.Body {
					t.Errorf("%s, accepting %q: got %q", in, accept, body)
				}
			}
		}
	}
	s.checkMemory(t)
}

// A gzip body may have several members, which are one body together.
func TestGzipOfSeveralMembers(t *testing.T) {
	s := newServer(t, []*core.Model{simple(2)})
	plain := pair("")
	want := s.do(request{path: "/v2/models/simple/infer", body: plain})
	for name, body := range map[string]string{
		"a border in the JSON":  compress(t, "gzip", plain[:20]) + compress(t, "gzip", plain[20:]),
		"an empty one at first": compress(t, "gzip", "") + compress(t, "gzip", plain),
		"an empty one at last":  compress(t, "gzip", plain) + compress(t, "gzip", ""),
	} {
		got := s.do(request{path: "/v2/models/simple/infer", header: map[string]string{"Content-Encoding": "gzip"}, body: body})
		if d := cmp.Diff(want, got); d != "" || got.Status != http.StatusOK {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	s.checkMemory(t)
}

func TestCompressedBodiesAreBounded(t *testing.T) {
	bomb := compress(t, "gzip", strings.Repeat(" ", 1<<20))
	for _, c := range []struct {
		name, encoding, body, text string
		status                     int
	}{
		{"too large when decompressed", "gzip", bomb, "Decompressed data size exceeds the maximum allowed value of 1000 bytes. Use --http-max-input-size to increase the limit.", 400},
		{"not what it says", "gzip", "no gzip at all", "failed to decompress the request body: zlib: invalid header", 400},
		{"nearly gzip", "deflate", "\x1fno gzip at all", "failed to decompress the request body: gzip: invalid header", 400},
		{"not zlib", "deflate", "no zlib at all", "failed to decompress the request body: zlib: invalid header", 400},
		{"cut off", "gzip", compress(t, "gzip", pair(""))[:40], "failed to decompress the request body: it ends within the compressed data", 400},
		{"followed by more", "deflate", compress(t, "deflate", pair("")) + strings.Repeat("x", 5000), "failed to decompress the request body: more follows the compressed data", 400},
		{"nothing", "gzip", "", "failed to decompress the request body: it ends within the compressed data", 400},
		{"altered", "gzip", compress(t, "gzip", pair(""))[:10] + strings.Repeat("\xff", 40), "failed to decompress the request body: flate: corrupt input before offset ", 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t, []*core.Model{simple(2)}, func(o *rest.Options) { o.MaxInput = 1000 })
			got := s.do(request{path: "/v2/models/simple/infer", header: map[string]string{"Content-Encoding": c.encoding}, body: c.body})
			if got.Status != c.status || !strings.HasPrefix(got.Body, `{"error":"`+c.text) {
				t.Errorf("got %d %s", got.Status, got.Body)
			}
			s.checkMemory(t)
		})
	}
}

type chunks struct{ io.Reader }

func TestBodyOfUnknownLength(t *testing.T) {
	s := newServer(t, []*core.Model{echo(tensor.Uint8, -1)}, func(o *rest.Options) { o.MaxInput, o.MaxBody = 1000, 300_000 })
	for _, c := range []struct{ size, status int }{{10, 200}, {200_000, 200}, {299_000, 200}, {300_001, 413}} {
		json := fmt.Sprintf(`{"parameters":{"binary_data_output":true},"inputs":[{"name":"IN","datatype":"UINT8","shape":[%d],"parameters":{"binary_data_size":%d}}]}`, c.size, c.size)
		data := strings.Repeat("z", c.size)
		r := httptest.NewRequest(http.MethodPost, "/v2/models/echo/infer", chunks{strings.NewReader(json + data)})
		r.Header.Set("Inference-Header-Content-Length", strconv.Itoa(len(json)))
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != c.status || w.Code == 200 && !strings.HasSuffix(w.Body.String(), "}]}"+data) {
			t.Errorf("%d bytes: %d, %.100s", c.size, w.Code, w.Body)
		}
		s.checkMemory(t)
	}
}

func TestBodyCutOffIsAnError(t *testing.T) {
	s := newServer(t, []*core.Model{simple(2)})
	for _, cut := range []int{10, len(binaryBody("", "").body) + 5} { // in the JSON, in the tensors
		q := binaryBody("", int32s(1, 2)+int32s(10, -2))
		r := httptest.NewRequest(http.MethodPost, q.path, io.MultiReader(strings.NewReader(q.body[:cut]), brokenReader{}))
		r.ContentLength = int64(len(q.body))
		r.Header.Set("Inference-Header-Content-Length", q.header["Inference-Header-Content-Length"])
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if want := `{"error":"the request's body was cut off"}`; w.Code != 400 || w.Body.String() != want || w.Header().Get("Nereid-Reason") != "cancelled" {
			t.Errorf("cut at %d: %d %s %v", cut, w.Code, w.Body, w.Header())
		}
	}
	s.checkMemory(t)
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestOverTheWire(t *testing.T) {
	s := newServer(t, []*core.Model{echo(tensor.FP32, -1)})
	web := httptest.NewServer(s)
	defer web.Close()
	const n = 150528
	json := fmt.Sprintf(`{"parameters":{"binary_data_output":true},"inputs":[{"name":"IN","datatype":"FP32","shape":[%d],"parameters":{"binary_data_size":%d}}]}`, n, 4*n)
	data := strings.Repeat("abcd", n)
	for range 3 {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, web.URL+"/v2/models/echo/infer", strings.NewReader(json+data))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Inference-Header-Content-Length", strconv.Itoa(len(json)))
		r.Header.Set("Accept-Encoding", "identity")
		w, err := web.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body := readAll(t, w.Body)
		w.Body.Close()
		if !strings.HasSuffix(body, "}]}"+data) || w.ContentLength != int64(len(body)) {
			t.Errorf("%s with %d bytes: %.200s", w.Status, w.ContentLength, body)
		}
	}
	w, err := web.Client().Head(web.URL + "/v2")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	if w.StatusCode != http.StatusOK || w.ContentLength <= 0 || readAll(t, w.Body) != "" {
		t.Errorf("HEAD: %s, %d bytes", w.Status, w.ContentLength)
	}
	s.checkMemory(t)
}

func FuzzInfer(f *testing.F) {
	q := binaryBody("", int32s(1, 2)+int32s(10, -2))
	f.Add(q.header["Inference-Header-Content-Length"], []byte(q.body))
	f.Add("", []byte(pair("")))
	f.Add("0", []byte("12345678"))
	f.Add("5", []byte("{}"))
	f.Fuzz(func(t *testing.T, header string, body []byte) {
		s := newServer(t, []*core.Model{simple(2), model("one", 0, []modelconfig.IO{tensorIO("IN", tensor.Bytes, -1)}, nil)})
		for _, path := range []string{"/v2/models/simple/infer", "/v2/models/one/infer"} {
			s.scheduler.execute = func(*infer.Request) *infer.Response { return &infer.Response{} }
			got := s.do(request{path: path, header: map[string]string{"Inference-Header-Content-Length": header}, body: string(body)}, "Nereid-Reason")
			if got.Status != 200 && got.Header["Nereid-Reason"] == "" {
				t.Errorf("%q, %q: %d %s", header, body, got.Status, got.Body)
			}
			if len(s.logged) > 0 {
				t.Errorf("%q, %q: %v", header, body, s.logged)
			}
		}
		s.checkMemory(t)
	})
}
