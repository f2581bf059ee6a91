package rest_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/rest"
)

// pair is the JSON of a request to simple(2).
func pair(parameters string) string {
	return `{` + parameters + `"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,2],"data":[1,2]},` +
		`{"name":"INPUT1","datatype":"INT32","shape":[1,2],"data":[[10,-2]]}]}`
}

const pairResponse = `{"model_name":"simple","model_version":"1","outputs":[` +
	`{"name":"OUTPUT0","datatype":"INT32","shape":[1,2],"data":[11,0]},` +
	`{"name":"OUTPUT1","datatype":"INT32","shape":[1,2],"data":[-9,4]}]}`

// binaryBody is a request to simple(2) whose tensors follow the JSON.
func binaryBody(parameters string, tensors string) request {
	json := fmt.Sprintf(`{%s"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,2],"parameters":{"binary_data_size":8}},`+
		`{"name":"INPUT1","datatype":"INT32","shape":[1,2],"parameters":{"binary_data_size":8}}]}`, parameters)
	return request{
		path:   "/v2/models/simple/infer",
		header: map[string]string{"Inference-Header-Content-Length": strconv.Itoa(len(json))},
		body:   json + tensors,
	}
}

func TestInferRespondsAsTriton(t *testing.T) {
	tensors := int32s(1, 2) + int32s(10, -2)
	binaryResponse := func(json, tensors string) response {
		return response{200, map[string]string{
			"Content-Type":                    "application/octet-stream",
			"Inference-Header-Content-Length": strconv.Itoa(len(json)),
			"Content-Length":                  strconv.Itoa(len(json) + len(tensors)),
		}, json + tensors}
	}
	jsonResponse := func(body string) response {
		return response{200, map[string]string{
			"Content-Type": "application/json", "Content-Length": strconv.Itoa(len(body)), "Inference-Header-Content-Length": "",
		}, body}
	}
	for _, c := range []struct {
		name string
		request
		want response
	}{
		{"JSON in and out", request{path: "/v2/models/simple/infer", body: pair("")}, jsonResponse(pairResponse)},
		{"with a version", request{path: "/v2/models/simple/versions/1/infer", body: pair("")}, jsonResponse(pairResponse)},
		{"the header may say that all is JSON", request{
			path: "/v2/models/simple/infer", body: pair(""),
			header: map[string]string{"Inference-Header-Content-Length": strconv.Itoa(len(pair("")))},
		}, jsonResponse(pairResponse)},
		{
			"id and parameters come back",
			request{path: "/v2/models/simple/infer", body: pair(`"id":"a\"1","parameters":{"color":"red","n":1},"outputs":[{"name":"OUTPUT1"}],`)},
			jsonResponse(`{"id":"a\"1","model_name":"simple","model_version":"1","parameters":{"color":"red","n":1},"outputs":[` +
				`{"name":"OUTPUT1","datatype":"INT32","shape":[1,2],"data":[-9,4]}]}`),
		},
		{"bytes in, JSON out", binaryBody("", tensors), jsonResponse(pairResponse)},
		{
			"bytes in and out", binaryBody(`"parameters":{"binary_data_output":true},`, tensors),
			binaryResponse(`{"model_name":"simple","model_version":"1","outputs":[`+
				`{"name":"OUTPUT0","datatype":"INT32","shape":[1,2],"parameters":{"binary_data_size":8}},`+
				`{"name":"OUTPUT1","datatype":"INT32","shape":[1,2],"parameters":{"binary_data_size":8}}]}`, int32s(11, 0)+int32s(-9, 4)),
		},
		{
			"an output named is JSON unless it says bytes",
			binaryBody(`"parameters":{"binary_data_output":true},"outputs":[{"name":"OUTPUT0"},{"name":"OUTPUT1","parameters":{"binary_data":true}}],`, tensors),
			binaryResponse(`{"model_name":"simple","model_version":"1","outputs":[`+
				`{"name":"OUTPUT0","datatype":"INT32","shape":[1,2],"data":[11,0]},`+
				`{"name":"OUTPUT1","datatype":"INT32","shape":[1,2],"parameters":{"binary_data_size":8}}]}`, int32s(-9, 4)),
		},
		{
			"no elements",
			request{path: "/v2/models/echo/infer", body: `{"parameters":{"binary_data_output":true},"inputs":[` +
				`{"name":"IN","datatype":"INT32","shape":[0],"parameters":{"binary_data_size":0}}]}`},
			jsonResponse(`{"model_name":"echo","model_version":"1","outputs":[{"name":"OUT","datatype":"INT32","shape":[0],"parameters":{"binary_data_size":0}}]}`),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t, []*core.Model{simple(2), echo(tensor.Int32, -1)})
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
		{name: "no body, which is a raw one", request: in(""), status: 400, text: "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'simple' model configuration", reason: "shape_mismatch"},
		{name: "no JSON", request: in("{nope}"), status: 500, text: "failed to parse the request JSON buffer: Missing a name for object member. at 1", reason: "invalid_json"},
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
			want := inferRefusal(c.status, c.text, c.reason)
			if c.reason == "model_not_found" || c.reason == "unsupported" {
				want = refusal(c.status, c.text, c.reason) // before there is a request
			}
			if d := cmp.Diff(want, s.doLike(c.request, want)); d != "" {
				t.Error(d)
			}
			s.checkMemory(t)
			if len(s.logged) > 0 {
				t.Errorf("logged %v: the caller has been told", s.logged)
			}
		})
	}
}

func TestErrorsOfTheEngineKeepTheirStatus(t *testing.T) {
	secret := errors.New("dial 10.0.0.7: refused")
	bug := errs.Wrap(errs.Bug, secret, "scheduler b at 10.0.0.7:9000 failed: its log says why")
	retry := func(after string, a response) response { a.Header["Retry-After"] = after; return a }
	for _, c := range []struct {
		name   string
		err    error
		want   response
		logged []error
	}{
		{"a refusal says when to come back", errs.New(errs.QueueFull, "queue of model 'simple' is full").WithRetry(1500 * time.Millisecond), retry("2", inferRefusal(429, "queue of model 'simple' is full", "queue_full")), nil},
		{"or a second", errs.New(errs.NoWorker, "no worker"), retry("1", inferRefusal(503, "no worker", "no_worker")), nil},
		{"a failure does not", errs.New(errs.ExecutionFailed, "x < 0 & \"y\""), retry("", inferRefusal(500, `x < 0 & \"y\"`, "execution_failed")), nil},
		{"a foreign error stays inside", secret, retry("", inferRefusal(500, "internal error", "bug")), []error{secret}},
		{"and the text of a bug", bug, retry("", inferRefusal(500, "internal error", "bug")), []error{bug}},
		{"and that of no known reason", errs.Wrap("of_tomorrow", secret, "a peer at 10.0.0.7 failed"), retry("", inferRefusal(500, "internal error", "bug")), []error{secret}},
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
	want := inferRefusal(400, "sending FP16 data via JSON is not supported. Please use the binary data format for output", "invalid_parameter")
	got := s.doLike(request{path: "/v2/models/echo/infer", header: map[string]string{"Inference-Header-Content-Length": strconv.Itoa(len(json))}, body: json + "ab"}, want)
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// compress applies a content coding.
// chunks hides the length of a body.
// Over a real connection: a large body both ways, and HEAD.
// Whatever the header says about whatever bytes, there is a response with a
// reason and no memory is lost.
