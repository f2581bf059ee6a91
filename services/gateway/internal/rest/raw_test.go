package rest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/rest"
)

func TestRawRequestIsTheOnlyInput(t *testing.T) {
	batched := echo(tensor.Int32, -1)
	batched.Versions[0].Config.MaxBatchSize = 4
	out := func(datatype, shape string, size int) string {
		return fmt.Sprintf(`{"model_name":"echo","model_version":"1","outputs":[{"name":"OUT","datatype":"%s","shape":%s,"parameters":{"binary_data_size":%d}}]}`, datatype, shape, size)
	}
	for _, c := range []struct {
		name  string
		model *core.Model
		body  string
		want  response
	}{
		{"fixed shape", echo(tensor.Int32, 2), int32s(1, 2), response{Status: 200, Body: out("INT32", "[2]", 8) + int32s(1, 2)}},
		{"the variable dimension is what is left", echo(tensor.Int32, 2, -1), int32s(1, 2, 3, 4), response{Status: 200, Body: out("INT32", "[2,2]", 16) + int32s(1, 2, 3, 4)}},
		{"one row", batched, int32s(1, 2, 3), response{Status: 200, Body: out("INT32", "[1,3]", 12) + int32s(1, 2, 3)}},
		{"a string", echo(tensor.Bytes, 1), "hello", response{Status: 200, Body: out("BYTES", "[1]", 9) + "\x05\x00\x00\x00hello"}},
		{"nothing", echo(tensor.Int32, -1), "", response{Status: 200, Body: out("INT32", "[0]", 0)}},
		{"bytes that fill no element", echo(tensor.Int32, -1), "12345", inferRefusal(400, "[request id: <id_unknown>] input byte size mismatch for input 'IN' for model 'echo'. Expected 4, got 5", "byte_size_mismatch")},
		{"two variable dimensions", echo(tensor.Int32, -1, -1), "1234", inferRefusal(400, "[request id: <id_unknown>] The shape of the raw input 'IN' can not be deduced because there are more than one variable-sized dimension", "shape_mismatch")},
		{"several strings", echo(tensor.Bytes, 2), "ab", inferRefusal(400, "[request id: <id_unknown>] For BYTE datatype raw input 'IN', the model must have input shape [1]", "shape_mismatch")},
		{"any number of strings", echo(tensor.Bytes, -1), "ab", inferRefusal(400, "[request id: <id_unknown>] For BYTE datatype raw input 'IN', the model must have input shape [1]", "shape_mismatch")},
		{"two inputs", simple(2), "1234", inferRefusal(400, "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'simple' model configuration", "shape_mismatch")},
		{"too large", echo(tensor.Int32, -1), strings.Repeat("x", 1001), inferRefusal(400, "Raw input has a byte_size (1001 bytes) that exceeds the maximum allowed value of 1000 bytes. Use --http-max-input-size to increase the limit.", "input_too_large")},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t, []*core.Model{c.model}, func(o *rest.Options) { o.MaxInput = 1000 })
			got := s.doLike(request{path: "/v2/models/" + c.model.Name + "/infer", header: map[string]string{"Inference-Header-Content-Length": "0"}, body: c.body}, c.want)
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
			s.checkMemory(t)
		})
	}
}
