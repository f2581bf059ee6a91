package rest_test

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/rest"
)

// pair is the JSON of a request to simple(2).
func pair(parameters string) string {
	return `{` + parameters + `"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,2],"data":[1,2]},` +
		`{"name":"INPUT1","datatype":"INT32","shape":[1,2],"data":[[10,-2]]}]}`
}

const pairAnswer = `{"model_name":"simple","model_version":"1","outputs":[` +
	`{"name":"OUTPUT0","datatype":"INT32","shape":[1,2],"data":[11,0]},` +
	`{"name":"OUTPUT1","datatype":"INT32","shape":[1,2],"data":[-9,4]}]}`

// binaryBody is a request to simple(2) whose tensors follow the JSON.
func binaryBody(parameters string, tensors string) request {
	json := fmt.Sprintf(`{%s"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,2],"parameters":{"binary_data_size":8}},`+
		`{"name":"INPUT1","datatype":"INT32","shape":[1,2],"parameters":{"binary_data_size":8}}]}`, parameters)
	return request{
		path:   "/v2/models/simple/infer",
		header: map[string]string{"Inference-Header-Content-Length": fmt.Sprint(len(json))},
		body:   json + tensors,
	}
}

func TestInferAnswersAsTriton(t *testing.T) {
	tensors := int32s(1, 2) + int32s(10, -2)
	binaryAnswer := func(json, tensors string) answer {
		return answer{200, map[string]string{
			"Content-Type":                    "application/octet-stream",
			"Inference-Header-Content-Length": fmt.Sprint(len(json)),
			"Content-Length":                  fmt.Sprint(len(json) + len(tensors)),
		}, json + tensors}
	}
	jsonAnswer := func(body string) answer {
		return answer{200, map[string]string{
			"Content-Type": "application/json", "Content-Length": fmt.Sprint(len(body)), "Inference-Header-Content-Length": "",
		}, body}
	}
	for _, c := range []struct {
		name string
		request
		want answer
	}{
		{"JSON in and out", request{path: "/v2/models/simple/infer", body: pair("")}, jsonAnswer(pairAnswer)},
		{"with a version", request{path: "/v2/models/simple/versions/1/infer", body: pair("")}, jsonAnswer(pairAnswer)},
		{"the header may say that all is JSON", request{
			path: "/v2/models/simple/infer", body: pair(""),
			header: map[string]string{"Inference-Header-Content-Length": fmt.Sprint(len(pair("")))},
		}, jsonAnswer(pairAnswer)},
		{
			"id and parameters come back",
			request{path: "/v2/models/simple/infer", body: pair(`"id":"a\"1","parameters":{"color":"red","n":1},"outputs":[{"name":"OUTPUT1"}],`)},
			jsonAnswer(`{"id":"a\"1","model_name":"simple","model_version":"1","parameters":{"color":"red","n":1},"outputs":[` +
				`{"name":"OUTPUT1","datatype":"INT32","shape":[1,2],"data":[-9,4]}]}`),
		},
		{"bytes in, JSON out", binaryBody("", tensors), jsonAnswer(pairAnswer)},
		{
			"bytes in and out", binaryBody(`"parameters":{"binary_data_output":true},`, tensors),
			binaryAnswer(`{"model_name":"simple","model_version":"1","outputs":[`+
				`{"name":"OUTPUT0","datatype":"INT32","shape":[1,2],"parameters":{"binary_data_size":8}},`+
				`{"name":"OUTPUT1","datatype":"INT32","shape":[1,2],"parameters":{"binary_data_size":8}}]}`, int32s(11, 0)+int32s(-9, 4)),
		},
		{
			"an output named is JSON unless it says bytes",
			binaryBody(`"parameters":{"binary_data_output":true},"outputs":[{"name":"OUTPUT0"},{"name":"OUTPUT1","parameters":{"binary_data":true}}],`, tensors),
			binaryAnswer(`{"model_name":"simple","model_version":"1","outputs":[`+
				`{"name":"OUTPUT0","datatype":"INT32","shape":[1,2],"data":[11,0]},`+
				`{"name":"OUTPUT1","datatype":"INT32","shape":[1,2],"parameters":{"binary_data_size":8}}]}`, int32s(-9, 4)),
		},
		{
			"no rows",
			request{path: "/v2/models/simple/infer", body: `{"parameters":{"binary_data_output":true},"inputs":[` +
				`{"name":"INPUT0","datatype":"INT32","shape":[0,2],"data":[]},{"name":"INPUT1","datatype":"INT32","shape":[0,2],"parameters":{"binary_data_size":0}}]}`},
			jsonAnswer(`{"model_name":"simple","model_version":"1","outputs":[` +
				`{"name":"OUTPUT0","datatype":"INT32","shape":[0,2],"parameters":{"binary_data_size":0}},` +
				`{"name":"OUTPUT1","datatype":"INT32","shape":[0,2],"parameters":{"binary_data_size":0}}]}`),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t, []*core.Model{simple(2)})
			if d := cmp.Diff(c.want, s.doLike(c.request, c.want)); d != "" {
				t.Error(d)
			}
			s.checkMemory(t)
		})
	}
}

func TestWrongInferRequestsAreRefusedAsTriton(t *testing.T) {
	tensors := int32s(1, 2) + int32s(10, -2)
	withHeader := func(q request, value string) request {
		q.header = map[string]string{"Inference-Header-Content-Length": value}
		return q
	}
	in := func(body string) request { return request{path: "/v2/models/simple/infer", body: body} }
	small := func(o *rest.Options) { o.MaxInput, o.MaxBody = 64, 64 }
	for _, c := range []struct {
		name string
		request
		options func(*rest.Options)
		status  int
		text    string
		reason  string
	}{
		{name: "unknown model", request: request{path: "/v2/models/nope/infer"}, status: 404, text: "Request for unknown model: 'nope' is not found", reason: "model_not_found"},
		{name: "unknown version", request: request{path: "/v2/models/simple/versions/2/infer"}, status: 404, text: "Request for unknown model: 'simple' version 2 is not found", reason: "model_not_found"},
		{name: "decoupled model", request: request{path: "/v2/models/stream/infer"}, status: 501, text: "HTTP end point doesn't support models with decoupled transaction policy", reason: "unsupported"},
		{name: "no body", request: in(""), status: 400, text: "failed to parse the request JSON buffer: The document is empty. at 0", reason: "invalid_json"},
		{name: "no JSON", request: in("{nope}"), status: 400, text: "failed to parse the request JSON buffer: Missing a name for object member. at 1", reason: "invalid_json"},
		{name: "too many elements", request: in(strings.Replace(pair(""), "[1,2],", "[1,1],", 1)), status: 500, text: "Unable to parse 'data': Shape does not match true shape of 'data' field", reason: "tensor_data_count"},
		{name: "header no number", request: withHeader(in(pair("")), "ten"), status: 400, text: "Unable to parse Inference-Header-Content-Length, got: ten", reason: "header_length_invalid"},
		{name: "header negative", request: withHeader(in(pair("")), "-1"), status: 400, text: fmt.Sprintf("inference header size should be in range (0, %d), got: -1", len(pair(""))), reason: "header_length_invalid"},
		{name: "header beyond the body", request: withHeader(in("{}"), "3"), status: 400, text: "inference header size should be in range (0, 2), got: 3", reason: "header_length_invalid"},
		{name: "too few bytes", request: binaryBody("", tensors[:13]), status: 400, text: "unexpected size for input 'INPUT1', expecting 3 additional bytes for model 'simple'", reason: "byte_size_mismatch"},
		{name: "too many bytes", request: binaryBody("", tensors+"x"), status: 400, text: "unexpected additional input data for model 'simple'", reason: "byte_size_mismatch"},
		{name: "bytes that nobody announced", request: withHeader(in(`{"inputs":[]} `), "13"), status: 400, text: "unexpected additional input data for model 'simple'", reason: "byte_size_mismatch"},
		{name: "a size beyond all memory", request: in(`{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,2],"parameters":{"binary_data_size":18446744073709551615}}]}`), status: 400, text: "unexpected size for input 'INPUT0', expecting 18446744073709551615 additional bytes for model 'simple'", reason: "byte_size_mismatch"},
		{name: "a missing input", request: in(`{"id":"7","inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,2],"data":[1,2]}]}`), status: 400, text: "[request id: 7] expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) ['INPUT0'], but missing required input(s) ['INPUT1']. Please provide all required input(s).", reason: "input_missing"},
		{name: "an unknown coding", request: request{path: "/v2/models/simple/infer", header: map[string]string{"Content-Encoding": "br"}}, status: 501, text: "Unsupported compression type", reason: "encoding_unsupported"},
		{name: "JSON too large", request: in(pair("")), options: small, status: 413, text: "the request's body exceeds the maximum of 64 bytes", reason: "body_too_large"},
		{name: "JSON larger than the input limit", request: in(pair("")), options: func(o *rest.Options) { o.MaxInput = 64 }, status: 400, text: fmt.Sprintf("request JSON size of %d bytes exceeds the maximum allowed value of 64 bytes. Use --http-max-input-size to increase the limit.", len(pair(""))), reason: "input_too_large"},
		{name: "a deadline that is none", request: request{path: "/v2/models/simple/infer", body: pair(""), header: map[string]string{"X-Request-Timeout": "soon"}}, status: 400, text: "header 'X-Request-Timeout' must be a positive number of seconds or a duration such as 150ms, got: soon", reason: "invalid_parameter"},
		{name: "a deadline in the past", request: request{path: "/v2/models/simple/infer", body: pair(""), header: map[string]string{"X-Request-Timeout": "-1"}}, status: 400, text: "header 'X-Request-Timeout' must be a positive number of seconds or a duration such as 150ms, got: -1", reason: "invalid_parameter"},
	} {
		t.Run(c.name, func(t *testing.T) {
			stream := model("stream", 0, nil, nil)
			stream.Versions[0].Config.Decoupled = true
			var options []func(*rest.Options)
			if c.options != nil {
				options = append(options, c.options)
			}
			s := newServer(t, []*core.Model{simple(2), stream}, options...)
			got := s.do(c.request, "Content-Type")
			id := `,"request_id":"7-1"`
			if c.reason == "model_not_found" || c.reason == "unsupported" {
				id = "" // refused before there is a request
			}
			want := answer{c.status, map[string]string{"Content-Type": "application/json"}, fmt.Sprintf(`{"error":"%s","reason":"%s"%s}`, c.text, c.reason, id)}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
			s.checkMemory(t)
			if len(s.logged) > 0 {
				t.Errorf("logged %v: the caller has been told", s.logged)
			}
		})
	}
}

func TestUnknownCodingSaysWhichAreKnown(t *testing.T) {
	s := newServer(t, []*core.Model{simple(2)})
	got := s.do(request{path: "/v2/models/simple/infer", header: map[string]string{"Content-Encoding": "br"}}, "Accept-Encoding")
	if got.Header["Accept-Encoding"] != "gzip, deflate" {
		t.Errorf("Accept-Encoding: %q", got.Header["Accept-Encoding"])
	}
}

func TestErrorsOfTheEngineKeepTheirStatus(t *testing.T) {
	secret := errors.New("dial 10.0.0.7: refused")
	for _, c := range []struct {
		name   string
		err    error
		want   answer
		logged []error
	}{
		{"a refusal says when to come back", errs.New(errs.QueueFull, "queue of model 'simple' is full").WithRetry(1500 * time.Millisecond), answer{429, map[string]string{"Retry-After": "2"}, `{"error":"queue of model 'simple' is full","reason":"queue_full","request_id":"7-1"}`}, nil},
		{"or a second", errs.New(errs.NoWorker, "no worker"), answer{503, map[string]string{"Retry-After": "1"}, `{"error":"no worker","reason":"no_worker","request_id":"7-1"}`}, nil},
		{"a failure does not", errs.New(errs.ExecutionFailed, "x < 0 & \"y\""), answer{500, map[string]string{"Retry-After": ""}, `{"error":"x < 0 & \"y\"","reason":"execution_failed","request_id":"7-1"}`}, nil},
		{"a foreign error stays inside", secret, answer{500, map[string]string{"Retry-After": ""}, `{"error":"internal error","reason":"bug","request_id":"7-1"}`}, []error{secret}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t, []*core.Model{simple(2)})
			s.scheduler.submit = func(*infer.Request) error { return c.err }
			got := s.doLike(request{path: "/v2/models/simple/infer", body: pair("")}, c.want)
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
			if len(s.logged) != len(c.logged) || len(c.logged) > 0 && !errors.Is(s.logged[0], secret) {
				t.Errorf("logged %v, want %v", s.logged, c.logged)
			}
			s.checkMemory(t)
		})
	}
}

func TestResponseThatJSONCannotSayIsAnError(t *testing.T) {
	s := newServer(t, []*core.Model{echo(tensor.FP16, -1)})
	json := `{"inputs":[{"name":"IN","datatype":"FP16","shape":[1],"parameters":{"binary_data_size":2}}]}`
	got := s.do(request{path: "/v2/models/echo/infer", header: map[string]string{"Inference-Header-Content-Length": fmt.Sprint(len(json))}, body: json + "ab"})
	want := answer{Status: 400, Body: `{"error":"sending FP16 data via JSON is not supported. Please use the binary data format for output","reason":"invalid_parameter","request_id":"7-1"}`}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestRawRequestIsTheOnlyInput(t *testing.T) {
	batched := echo(tensor.Int32, -1)
	batched.Versions[0].Config.MaxBatchSize = 4
	out := func(datatype, shape string, size int) string {
		return fmt.Sprintf(`{"model_name":"echo","model_version":"1","outputs":[{"name":"OUT","datatype":"%s","shape":%s,"parameters":{"binary_data_size":%d}}]}`, datatype, shape, size)
	}
	refused := func(status int, text, reason string) answer {
		return answer{Status: status, Body: fmt.Sprintf(`{"error":"%s","reason":"%s","request_id":"7-1"}`, text, reason)}
	}
	for _, c := range []struct {
		name  string
		model *core.Model
		body  string
		want  answer
	}{
		{"fixed shape", echo(tensor.Int32, 2), int32s(1, 2), answer{Status: 200, Body: out("INT32", "[2]", 8) + int32s(1, 2)}},
		{"the variable dimension is what is left", echo(tensor.Int32, 2, -1), int32s(1, 2, 3, 4), answer{Status: 200, Body: out("INT32", "[2,2]", 16) + int32s(1, 2, 3, 4)}},
		{"one row", batched, int32s(1, 2, 3), answer{Status: 200, Body: out("INT32", "[1,3]", 12) + int32s(1, 2, 3)}},
		{"a string", echo(tensor.Bytes, 1), "hello", answer{Status: 200, Body: out("BYTES", "[1]", 9) + "\x05\x00\x00\x00hello"}},
		{"nothing", echo(tensor.Int32, -1), "", answer{Status: 200, Body: out("INT32", "[0]", 0)}},
		{"bytes that fill no element", echo(tensor.Int32, -1), "12345", refused(400, "[request id: <id_unknown>] input byte size mismatch for input 'IN' for model 'echo'. Expected 4, got 5", "byte_size_mismatch")},
		{"two variable dimensions", echo(tensor.Int32, -1, -1), "1234", refused(400, "[request id: <id_unknown>] The shape of the raw input 'IN' can not be deduced because there are more than one variable-sized dimension", "shape_mismatch")},
		{"several strings", echo(tensor.Bytes, 2), "ab", refused(400, "[request id: <id_unknown>] For BYTE datatype raw input 'IN', the model must have input shape [1]", "shape_mismatch")},
		{"two inputs", simple(2), "1234", refused(400, "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'simple' model configuration", "shape_mismatch")},
		{"too large", echo(tensor.Int32, -1), strings.Repeat("x", 1001), refused(400, "Raw input has a byte_size (1001 bytes) that exceeds the maximum allowed value of 1000 bytes. Use --http-max-input-size to increase the limit.", "input_too_large")},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t, []*core.Model{c.model}, func(o *rest.Options) { o.MaxInput = 1000 })
			got := s.do(request{path: "/v2/models/" + c.model.Name + "/infer", header: map[string]string{"Inference-Header-Content-Length": "0"}, body: c.body})
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
			s.checkMemory(t)
		})
	}
}

// compress applies a content coding.
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
				if got.Header["Content-Encoding"] != out || got.Header["Content-Length"] != fmt.Sprint(len(got.Body)) {
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

func TestCompressedBodiesAreBounded(t *testing.T) {
	bomb := compress(t, "gzip", strings.Repeat(" ", 1<<20))
	for _, c := range []struct {
		name, encoding, body, text string
		status                     int
	}{
		{"too large when decompressed", "gzip", bomb, "Decompressed data size exceeds the maximum allowed value of 1000 bytes. Use --http-max-input-size to increase the limit.", 400},
		{"not what it says", "gzip", "no gzip at all", "failed to decompress the request body: gzip: invalid header", 400},
		{"not zlib", "deflate", "no zlib at all", "failed to decompress the request body: zlib: invalid header", 400},
		{"cut off", "gzip", compress(t, "gzip", pair(""))[:40], "the request's body was cut off", 400},
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

// chunks hides the length of a body.
type chunks struct{ io.Reader }

func TestBodyOfUnknownLength(t *testing.T) {
	s := newServer(t, []*core.Model{echo(tensor.Uint8, -1)}, func(o *rest.Options) { o.MaxInput, o.MaxBody = 1000, 300_000 })
	for _, c := range []struct{ size, status int }{{10, 200}, {200_000, 200}, {299_000, 200}, {300_001, 413}} {
		json := fmt.Sprintf(`{"parameters":{"binary_data_output":true},"inputs":[{"name":"IN","datatype":"UINT8","shape":[%d],"parameters":{"binary_data_size":%d}}]}`, c.size, c.size)
		data := strings.Repeat("z", c.size)
		r := httptest.NewRequest(http.MethodPost, "/v2/models/echo/infer", chunks{strings.NewReader(json + data)})
		r.Header.Set("Inference-Header-Content-Length", fmt.Sprint(len(json)))
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
		if want := `{"error":"the request's body was cut off","reason":"cancelled","request_id":`; w.Code != 400 || !strings.HasPrefix(w.Body.String(), want) {
			t.Errorf("cut at %d: %d %s", cut, w.Code, w.Body)
		}
	}
	s.checkMemory(t)
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestRequestCarriesWhatTheClientSaid(t *testing.T) {
	s := newServer(t, []*core.Model{simple(2)})
	var got infer.Request
	s.scheduler.submit = func(q *infer.Request) error { got = *q; return nil }
	s.do(request{
		path: "/v2/models/simple/infer",
		body: pair(`"id":"x","parameters":{"sequence_id":5,"priority":2,"timeout":7,"k":true},"outputs":[{"name":"OUTPUT1"}],`),
		header: map[string]string{
			"Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "X-Request-Timeout": "1500ms",
		},
	})
	if left := got.Deadline.Sub(got.Received); left != 1500*time.Millisecond {
		t.Errorf("the deadline is %v after the request came", left)
	}
	got.Inputs, got.Deadline, got.Received = nil, 0, 0
	want := infer.Request{
		Work:       infer.Work{Request: infer.RequestID{Origin: 7, Number: 1}, Attempt: 1, Revision: 3},
		ID:         "x",
		Model:      infer.ModelRef{Name: "simple", Version: 1},
		Rows:       1,
		Outputs:    []infer.Output{{Name: "OUTPUT1"}},
		Parameters: []infer.Parameter{{Key: "k", Value: true}},
		Sequence:   infer.Sequence{ID: 5},
		Priority:   2,
		Timeout:    7 * time.Microsecond,
		Trace:      "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestClientsDeadlineEndsTheWait(t *testing.T) {
	s := newServer(t, []*core.Model{simple(2)})
	s.scheduler.execute = nil // never answers
	var canceled []infer.RequestID
	s.scheduler.cancel = func(id infer.RequestID) { canceled = append(canceled, id) }
	got := s.do(request{path: "/v2/models/simple/infer", body: pair(""), header: map[string]string{"X-Request-Timeout": "0.001"}})
	want := answer{Status: 504, Body: `{"error":"the deadline passed before the answer was there","reason":"deadline_compute","request_id":"7-1"}`}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]infer.RequestID{{Origin: 7, Number: 1}}, canceled); d != "" {
		t.Error(d)
	}
}

func TestClientThatGoesAwayCancels(t *testing.T) {
	s := newServer(t, []*core.Model{simple(2)})
	submitted, canceled := make(chan struct{}), make(chan infer.RequestID, 1)
	s.scheduler.execute = nil
	s.scheduler.submit = func(*infer.Request) error { close(submitted); return nil }
	s.scheduler.cancel = func(id infer.RequestID) { canceled <- id }
	web := httptest.NewServer(s)
	defer web.Close()
	ctx, leave := context.WithCancel(t.Context())
	go func() { <-submitted; leave() }()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, web.URL+"/v2/models/simple/infer", strings.NewReader(pair("")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := web.Client().Do(r); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if id := <-canceled; id.Number != 1 {
		t.Errorf("canceled %v", id)
	}
}

// Over a real connection: a large body both ways, and HEAD.
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
		r.Header.Set("Inference-Header-Content-Length", fmt.Sprint(len(json)))
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
	if w.StatusCode != 200 || w.ContentLength <= 0 || readAll(t, w.Body) != "" {
		t.Errorf("HEAD: %s, %d bytes", w.Status, w.ContentLength)
	}
	s.checkMemory(t)
}

// Whatever the header says about whatever bytes, there is an answer with a
// reason and no memory is lost.
func FuzzInfer(f *testing.F) {
	q := binaryBody("", int32s(1, 2)+int32s(10, -2))
	f.Add(q.header["Inference-Header-Content-Length"], []byte(q.body))
	f.Add("", []byte(pair("")))
	f.Add("0", []byte("12345678"))
	f.Add("5", []byte("{}"))
	f.Fuzz(func(t *testing.T, header string, body []byte) {
		s := newServer(t, []*core.Model{simple(2), model("one", 0, []modelconfig.IO{tensorIO("IN", tensor.Bytes, -1)}, nil)})
		for _, path := range []string{"/v2/models/simple/infer", "/v2/models/one/infer"} {
			s.scheduler.execute = func(q *infer.Request) *infer.Response { return &infer.Response{} }
			got := s.do(request{path: path, header: map[string]string{"Inference-Header-Content-Length": header}, body: string(body)})
			if got.Status != 200 && !strings.Contains(got.Body, `"reason":"`) {
				t.Errorf("%q, %q: %d %s", header, body, got.Status, got.Body)
			}
			if len(s.logged) > 0 {
				t.Errorf("%q, %q: %v", header, body, s.logged)
			}
		}
		s.checkMemory(t)
	})
}
