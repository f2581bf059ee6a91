package jsoninfer_test

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/jsoninfer"
)

func output(d tensor.Datatype, data string, shape ...int64) infer.Tensor {
	return infer.Tensor{Name: "X", Datatype: d, Shape: shape, Data: tensor.InHeap([]byte(data))}
}

func TestDataIsWrittenAsTritonDoes(t *testing.T) {
	for _, c := range []struct {
		name string
		out  infer.Tensor
		want string
	}{
		{"floats look like floats", output(tensor.FP32, le([]float32{1, -0.5, 0.1, 16777216, 1e-7, 1e21, 123456}), 7), "1.0,-0.5,0.1,16777216.0,1e-7,1e21,123456.0"},
		{"words for what is no number", output(tensor.FP32, le([]float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))}), 3), "NaN,Infinity,-Infinity"},
		{"zeros", output(tensor.FP64, le([]float64{0, math.Copysign(0, -1)}), 2), "0.0,-0.0"},
		{"doubles", output(tensor.FP64, le([]float64{0.1, 1e300, 5e-324}), 3), "0.1,1e300,5e-324"},
		{"int8", output(tensor.Int8, le([]int8{-128, 127}), 2), "-128,127"},
		{"int16", output(tensor.Int16, le([]int16{-32768, 1}), 1, 2), "-32768,1"},
		{"int32", output(tensor.Int32, le([]int32{math.MinInt32}), 1), "-2147483648"},
		{"int64", output(tensor.Int64, le([]int64{math.MinInt64}), 1), "-9223372036854775808"},
		{"uint8", output(tensor.Uint8, "\xff", 1), "255"},
		{"uint16", output(tensor.Uint16, "\xff\xff", 1), "65535"},
		{"uint32", output(tensor.Uint32, "\xff\xff\xff\xff", 1), "4294967295"},
		{"uint64", output(tensor.Uint64, le([]uint64{math.MaxUint64}), 1), "18446744073709551615"},
		{"booleans", output(tensor.Bool, "\x00\x01\x02", 3), "false,true,true"},
		{"strings", output(tensor.Bytes, "\x01\x00\x00\x00a\x00\x00\x00\x00", 2), `"a",""`},
		{"nothing", output(tensor.FP32, "", 0), ""},
		{"no strings", output(tensor.Bytes, "", 0), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := jsoninfer.AppendData([]byte("<"), &c.out, nil)
			if err != nil || string(got) != "<"+c.want {
				t.Errorf("got %s, %v, want <%s", got, err, c.want)
			}
		})
	}
}

func TestOutputThatCannotBeWrittenIsAnError(t *testing.T) {
	wrongSize := refusal{errs.ExecutionFailed, "output tensor shape does not match size of output for 'X'"}
	for _, c := range []struct {
		name string
		out  infer.Tensor
		want refusal
	}{
		{"FP16", output(tensor.FP16, "ab", 1), refusal{errs.InvalidParameter, "sending FP16 data via JSON is not supported. Please use the binary data format for output"}},
		{"BF16", output(tensor.BF16, "ab", 1), refusal{errs.InvalidParameter, "sending BF16 data via JSON is not supported. Please use the binary data format for output"}},
		{"too few bytes", output(tensor.FP32, "abc", 1), wrongSize},
		{"too many bytes", output(tensor.FP32, "abcdefgh", 1), wrongSize},
		{"a string cut off", output(tensor.Bytes, "\x05\x00\x00\x00a", 1), wrongSize},
		{"too few strings", output(tensor.Bytes, "\x01\x00\x00\x00a", 2), wrongSize},
		{"an unknown shape", output(tensor.Bytes, "", -1), wrongSize},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := jsoninfer.AppendData(nil, &c.out, nil)
			if d := cmp.Diff(c.want, refusalOf(err)); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestResponseHasTritonsFieldsInItsOrder(t *testing.T) {
	p := &infer.Response{
		Outputs:    []infer.Tensor{output(tensor.Int8, "\x07", 1, 1), output(tensor.FP16, "ab", 1), output(tensor.FP16, "", 0)},
		Parameters: []infer.Parameter{{Key: "b", Value: true}, {Key: "i", Value: int64(-3)}, {Key: "f", Value: 2.0}, {Key: "s", Value: "x\"y"}},
	}
	p.Outputs[1].Name, p.Outputs[2].Name = "Y", "Z"
	form := &jsoninfer.Envelope{BinaryOutputs: true, Outputs: []jsoninfer.OutputForm{{Name: "X"}}}
	got, err := jsoninfer.AppendResponse(nil, "id", infer.ModelRef{Name: "m", Version: 3}, p, form, nil)
	want := `{"id":"id","model_name":"m","model_version":"3","parameters":{"b":true,"i":-3,"f":2.0,"s":"x\"y"},"outputs":[` +
		`{"name":"X","datatype":"INT8","shape":[1,1],"data":[7]},` +
		`{"name":"Y","datatype":"FP16","shape":[1],"parameters":{"binary_data_size":2}},` +
		`{"name":"Z","datatype":"FP16","shape":[0],"parameters":{"binary_data_size":0}}]}`
	if err != nil || string(got) != want {
		t.Errorf("got  %s, %v\nwant %s", got, err, want)
	}
	got, err = jsoninfer.AppendResponse(nil, "", infer.ModelRef{Name: "m", Version: 3}, &infer.Response{}, form, nil)
	if want := `{"model_name":"m","model_version":"3","outputs":[]}`; err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

func TestStringsAreEscapedOnlyWhereJSONDemandsIt(t *testing.T) {
	const text = "a\"b\\c/d\n\r\t\b\f\x00\x1f\u007fé😀<&>"
	got := string(jsoninfer.AppendString(nil, text))
	want := `"a\"b\\c/d\n\r\t\b\f\u0000\u001F` + "\u007fé😀<&>" + `"`
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	var back string
	if err := json.Unmarshal([]byte(got), &back); err != nil || back != text {
		t.Errorf("reads back as %q, %v", back, err)
	}
	if got := jsoninfer.AppendString(nil, []byte{'x', 0xff}); string(got) != "\"x\xff\"" {
		t.Errorf("got %q: bytes that are not UTF-8 stay", got)
	}
}
