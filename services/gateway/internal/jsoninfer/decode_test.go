package jsoninfer_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/classify"
	"github.com/nereid-serving/nereid/services/gateway/internal/jsoninfer"
	"github.com/nereid-serving/nereid/services/gateway/internal/regions"
)

// decode runs one document through a fresh decoder.
func decode(body string) (*infer.Request, *jsoninfer.Envelope, error) {
	d := jsoninfer.Decoder{Pool: tensor.NewPool(1 << 20), MaxTensor: 1 << 20}
	r, e := &infer.Request{}, &jsoninfer.Envelope{}
	return r, e, d.Decode([]byte(body), &modelconfig.Config{}, r, e)
}

// refusal is an error as a caller sees it.
type refusal struct {
	Reason errs.Reason
	Text   string
}

func refusalOf(err error) refusal {
	if err == nil {
		return refusal{}
	}
	e := errs.From(err)
	return refusal{e.Reason, e.Msg}
}

// le packs values in the byte order of tensors.
func le(values any) string {
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, values); err != nil {
		panic(err)
	}
	return b.String()
}

func TestDataIsReadAsItsDatatype(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		name, datatype, data string
		count                int
		want                 string
	}{
		{"flat floats", "FP32", "[1.5,-2,3e2]", 3, le([]float32{1.5, -2, 300})},
		{"white space everywhere", "FP32", " [ 1 ,\t2\r\n, 3 ] ", 3, le([]float32{1, 2, 3})},
		{"nested as the shape", "INT32", "[[1,2],[3,4]]", 4, le([]int32{1, 2, 3, 4})},
		{"nested in any way", "INT32", "[1,[[2],[]],[],[3,[4]]]", 4, le([]int32{1, 2, 3, 4})},
		{"not a number and infinities", "FP32", "[NaN,Infinity,-Infinity,Inf,-Inf,-NaN]", 6, le([]float32{nan, inf, -inf, inf, -inf, -nan})},
		{"a float32's overflow is infinite", "FP32", "[1e39,-1e39,3.4028235e38]", 3, le([]float32{inf, -inf, math.MaxFloat32})},
		{"subnormal floats", "FP32", "[1e-45,1.1754942e-38]", 2, le([]float32{math.SmallestNonzeroFloat32, 1.1754942e-38})},
		{"doubles", "FP64", "[0.1,1e308,5e-324,-0.0]", 4, le([]float64{0.1, 1e308, 5e-324, math.Copysign(0, -1)})},
		{"many digits", "FP64", "[0.123456789012345678901234567890,100000000000000000000000000000]", 2, le([]float64{0.12345678901234568, 1e29})},
		{"bytes at their ends", "INT8", "[-128,127]", 2, le([]int8{-128, 127})},
		{"shorts at their ends", "INT16", "[-32768,32767]", 2, le([]int16{-32768, 32767})},
		{"longs at their ends", "INT64", "[-9223372036854775808,9223372036854775807]", 2, le([]int64{math.MinInt64, math.MaxInt64})},
		{"unsigned bytes", "UINT8", "[0,255]", 2, "\x00\xff"},
		{"unsigned shorts", "UINT16", "[65535]", 1, "\xff\xff"},
		{"unsigned ints, and minus zero", "UINT32", "[4294967295,-0]", 2, le([]uint32{math.MaxUint32, 0})},
		{"unsigned longs", "UINT64", "[18446744073709551615]", 1, le([]uint64{math.MaxUint64})},
		{"booleans", "BOOL", "[true,[false,true]]", 3, "\x01\x00\x01"},
		{"strings", "BYTES", `["ab","",["é"]]`, 3, "\x02\x00\x00\x00ab\x00\x00\x00\x00\x02\x00\x00\x00é"},
		{"escapes", "BYTES", `["\"\\\/\b\f\n\r\t\u0041\u00e9\ud83d\ude00"]`, 1, "\x0f\x00\x00\x00\"\\/\b\f\n\r\tAé😀"},
		{"strings that are not UTF-8", "BYTES", "[\"\xff\xfe\"]", 1, "\x02\x00\x00\x00\xff\xfe"},
		{"no elements: the data is not looked at", "INT32", `{"a":["b"]}`, 0, ""},
		{"no elements of a datatype that JSON has no form for", "FP16", `[]`, 0, ""},
		{"no elements of no datatype, which is found later", "FP8", `[]`, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			inOrder := fmt.Sprintf(`{"inputs":[{"name":"A","datatype":"%s","shape":[%d],"data":%s}]}`, c.datatype, c.count, c.data)
			dataFirst := fmt.Sprintf(`{"inputs":[{"data":%s,"shape":[%d],"datatype":"%s","name":"A"}]}`, c.data, c.count, c.datatype)
			for _, body := range []string{inOrder, dataFirst} {
				r, _, err := decode(body)
				if err != nil {
					t.Fatalf("%s: %v", body, err)
				}
				got, err := r.Inputs[0].Data.Bytes()
				if err != nil || string(got) != c.want {
					t.Errorf("%s: got %x, %v, want %x", body, got, err, c.want)
				}
			}
		})
	}
}

func TestWrongDataIsRefused(t *testing.T) {
	const syntax = "failed to parse the request JSON buffer: "
	wrongCount := refusal{errs.TensorDataCount, "Unable to parse 'data': Shape does not match true shape of 'data' field"}
	invalid := func(text string) refusal { return refusal{errs.InvalidJSON, "Unable to parse 'data': " + text} }
	// The offset is that in the data; the test adds what comes before.
	badSyntax := func(text string, at int) refusal {
		return refusal{errs.InvalidJSON, syntax + text + " at " + strconv.Itoa(at+len(`{"inputs":[{"name":"A","datatype":"INT32","shape":[2],"data":`))}
	}
	for _, c := range []struct {
		name, datatype, data string
		want                 refusal
	}{
		{"one too many", "INT32", "[1,2,3]", wrongCount},
		{"too many in a later array", "INT32", "[[1],[2],[3]]", wrongCount},
		{"one too few", "INT32", "[1 ]  ", wrongCount},
		{"too short for its shape", "INT32", "[]", wrongCount},
		{"too short and no array", "INT32", "1", refusal{errs.InvalidJSON, "Unable to parse 'data': attempt to access JSON non-array as array"}},
		{"not an array", "INT32", "12345", invalid("attempt to access JSON non-array as array")},
		{"a string for a float", "FP32", `["a",2]`, invalid("attempt to access JSON non-number as double")},
		{"null for a float", "FP64", `[null,2]`, invalid("attempt to access JSON non-number as double")},
		{"a float for an int", "INT32", "[1.0,2]", invalid("attempt to access JSON non-signed-integer as signed-integer")},
		{"an exponent for an int", "INT32", "[1e1,2]", invalid("attempt to access JSON non-signed-integer as signed-integer")},
		{"NaN for an int", "INT32", "[NaN,2]", invalid("attempt to access JSON non-signed-integer as signed-integer")},
		{"an object for an int", "INT32", `[{"a":1},2]`, invalid("attempt to access JSON non-signed-integer as signed-integer")},
		{"too large for any int", "INT64", "[9223372036854775808,2]", invalid("attempt to access JSON non-signed-integer as signed-integer")},
		{"a negative unsigned", "UINT8", "[-1,2]", invalid("attempt to access JSON non-unsigned-integer as unsigned-integer")},
		{"too large for its int", "INT8", "[128,2]", invalid("128 does not fit INT8")},
		{"too small for its int", "INT16", "[-32769,2]", invalid("-32769 does not fit INT16")},
		{"too large for its unsigned", "UINT32", "[4294967296,2]", invalid("4294967296 does not fit UINT32")},
		{"a number for a boolean", "BOOL", "[1,0]", invalid("attempt to access JSON non-boolean as boolean")},
		{"a number for a string", "BYTES", "[1,2]", refusal{errs.InvalidJSON, "Unable to parse JSON bytes array: attempt to access JSON non-string as string"}},
		{"half a float", "FP16", "[1,2]", refusal{errs.TensorDataInvalid, "receiving FP16 data via JSON is not supported. Please use the binary data format for input A"}},
		{"half a brain float", "BF16", "[1,2]", refusal{errs.TensorDataInvalid, "receiving BF16 data via JSON is not supported. Please use the binary data format for input A"}},
		{"an unknown datatype", "FP8", "[1,2]", refusal{errs.DatatypeMismatch, "invalid datatype for input A"}},
		{"a comma after the last", "INT32", "[1,2,]", badSyntax("Invalid value.", 5)},
		{"a comma at the end", "INT32", "[1,]   ", badSyntax("Invalid value.", 3)},
		{"a comma after an array", "INT32", "[[1],]", badSyntax("Invalid value.", 5)},
		{"no comma", "INT32", "[1 2]", badSyntax("Missing a comma or ']' after an array element.", 3)},
		{"a leading zero", "INT32", "[01,2]", badSyntax("Missing a comma or ']' after an array element.", 2)},
		{"a plus", "INT32", "[+1,2]", badSyntax("Invalid value.", 1)},
		{"no fraction", "FP32", "[1.,2]", badSyntax("Miss fraction part in number.", 3)},
		{"no exponent", "FP32", "[1e,2]", badSyntax("Miss exponent in number.", 3)},
		{"no digits", "FP32", "[-,2]", badSyntax("Invalid value.", 2)},
		{"too big for a double", "FP32", "[1e400,2]", badSyntax("Number too big to be stored in double.", 1)},
		{"half a surrogate pair", "BYTES", `["\ud800x","a"]`, badSyntax("The surrogate pair in string is invalid.", 2)},
		{"a low surrogate first", "BYTES", `["\udc00\ud800","a"]`, badSyntax("The surrogate pair in string is invalid.", 2)},
		{"no hex", "BYTES", `["\u00g0","a"]`, badSyntax("Incorrect hex digit after \\u escape in string.", 2)},
		{"an unknown escape", "BYTES", `["\x","a"]`, badSyntax("Invalid escape character in string.", 2)},
		{"a raw line break", "BYTES", "[\"a\nb\",\"a\"]", badSyntax("Invalid escape character in string.", 3)},
		{"too deep", "INT32", strings.Repeat("[", 101) + strings.Repeat("]", 101), refusal{errs.TensorDataInvalid, "JSON nesting depth exceeds maximum allowed limit (100)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			body := fmt.Sprintf(`{"inputs":[{"name":"A","datatype":%-7q,"shape":[2],"data":%s}]}`, c.datatype, c.data)
			r, _, err := decode(body)
			if d := cmp.Diff(c.want, refusalOf(err)); d != "" {
				t.Errorf("%s: %s", body, d)
			}
			r.Release()
		})
	}
}

func TestAHundredLevelsAreRead(t *testing.T) {
	body := `{"inputs":[{"name":"A","datatype":"INT32","shape":[1],"data":` + strings.Repeat("[", 100) + "7" + strings.Repeat("]", 100) + `}]}`
	if _, _, err := decode(body); err != nil {
		t.Error(err)
	}
}

// A shape for which the document has too few elements costs no memory.
func TestClaimedSizeIsNotAllocated(t *testing.T) {
	pool := tensor.NewPool(0)
	d := jsoninfer.Decoder{Pool: pool, MaxTensor: 1 << 40}
	var r infer.Request
	err := d.Decode([]byte(`{"inputs":[{"name":"A","datatype":"FP32","shape":[100000000000],"data":[1,2,3]}]}`),
		&modelconfig.Config{}, &r, &jsoninfer.Envelope{})
	if errs.Of(err) != errs.TensorDataCount || r.InputBytes() != 0 {
		t.Errorf("got %v with %d bytes, want a refusal without any", err, r.InputBytes())
	}
	d.MaxTensor = 8
	err = d.Decode([]byte(`{"inputs":[{"name":"A","datatype":"FP32","shape":[3],"data":[1,2,3]}]}`),
		&modelconfig.Config{}, &r, &jsoninfer.Envelope{})
	want := refusal{errs.InputTooLarge, "JSON input 'A' has a byte_size (12 bytes) that exceeds the maximum allowed value of 8 bytes. " +
		"Use --http-max-input-size to increase the limit."}
	if d := cmp.Diff(want, refusalOf(err)); d != "" {
		t.Error(d)
	}
}

func TestEntriesAreBounded(t *testing.T) {
	many := func(before, entry, after string, n int) string {
		return before + strings.Repeat(entry+",", n-1) + entry + after
	}
	const n = jsoninfer.MaxEntries
	for _, c := range []struct {
		name, before, entry, after string
	}{
		{"inputs", `{"inputs":[`, `{"name":"A","datatype":"INT8","shape":[],"data":[1]}`, `]}`},
		{"outputs", `{"inputs":[],"outputs":[`, `{"name":"A"}`, `]}`},
		{"parameters", `{"inputs":[],"parameters":{`, `"k":1`, `}}`},
		{"dimensions", `{"inputs":[{"name":"A","datatype":"INT8","data":[1],"shape":[`, `1`, `]}]}`},
	} {
		want := refusal{errs.InputTooLarge, "request has more than 8192 inputs, outputs, parameters and dimensions"}
		r, _, err := decode(many(c.before, c.entry, c.after, n+1))
		if d := cmp.Diff(want, refusalOf(err)); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
		r.Release()
		r, _, err = decode(many(c.before, c.entry, c.after, n-1))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		r.Release()
	}
}

func TestEnvelopeIsRead(t *testing.T) {
	r, e, err := decode(`{
		"later": [{"a": [null, true, 1.5e3, "x\n"]}],
		"id": "q\u002d1", "id": "second",
		"parameters": {"sequence_id": 42, "sequence_start": true, "sequence_end": true, "priority": 3, "timeout": 1500,
			"binary_data_output": true, "s": "v", "i": -9, "b": false, "f": 1.5, "large": 9223372036854775808},
		"inputs": [
			{"name": "A", "datatype": "FP32", "shape": [2, 3], "parameters": {"binary_data_size": 24, "other": {}}},
			{"name": "B", "datatype": "INT64", "shape": [], "data": [5]},
			{"parameters": {"binary_data_size": 0}, "shape": [0], "name": "C", "datatype": "FP16"}],
		"outputs": [{"name": "X", "parameters": {"binary_data": true, "classification": 0}}, {"name": "Y", "parameters": {"classification": 3}}]}`)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := r.Inputs[1].Data.Bytes()
	if string(b) != le([]int64{5}) {
		t.Errorf("B holds %x", b)
	}
	r.Inputs[1].Data = tensor.Ref{}
	want := &infer.Request{
		ID: "q-1",
		Inputs: []infer.Tensor{
			{Name: "A", Datatype: tensor.FP32, Shape: tensor.Shape{2, 3}},
			{Name: "B", Datatype: tensor.Int64, Shape: tensor.Shape{}},
			{Name: "C", Datatype: tensor.FP16, Shape: tensor.Shape{0}},
		},
		Outputs: []infer.Output{{Name: "X"}, {Name: "Y"}},
		Parameters: []infer.Parameter{
			{Key: "s", Value: "v"},
			{Key: "i", Value: int64(-9)},
			{Key: "b", Value: false},
			{Key: "f", Value: 1.5},
			{Key: "large", Value: float64(1 << 63)},
		},
		Sequence: infer.Sequence{ID: 42, Start: true, End: true},
		Priority: 3,
		Timeout:  1500 * time.Microsecond,
	}
	form := &jsoninfer.Envelope{
		Binary:        []jsoninfer.BinaryInput{{Index: 0, Size: 24}, {Index: 2, Size: 0}},
		BinaryOutputs: true,
		Outputs:       []jsoninfer.OutputForm{{Name: "X", Binary: true}, {Name: "Y"}},
		Classes:       []classify.Output{{Name: "Y", Classes: 3}},
	}
	if d := cmp.Diff(want, r); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(form, e); d != "" {
		t.Error(d)
	}
	if !e.BinaryOutput("X") || e.BinaryOutput("Y") || !e.BinaryOutput("Z") {
		t.Error("an output named has its own form, another the default")
	}
}

func TestAByteOrderMarkIsSkipped(t *testing.T) {
	r, _, err := decode("\uFEFF" + `{"inputs":[],"id":"7"}`)
	if err != nil || r.ID != "7" {
		t.Errorf("got %q, %v", r.ID, err)
	}
	if _, _, err := decode("\uFEFF"); errs.Of(err) != errs.InvalidJSON {
		t.Errorf("a mark alone: %v", err)
	}
}

func TestSequenceKeyMayBeAString(t *testing.T) {
	for parameters, want := range map[string]infer.Sequence{
		`"sequence_id":"call-7"`:                     {Key: "call-7"},
		`"sequence_id":7,"sequence_id":"call-7"`:     {Key: "call-7"},
		`"sequence_id":"call-7","sequence_id":7`:     {ID: 7},
		`"sequence_id":18446744073709551615`:         {ID: math.MaxUint64},
		`"sequence_id":"","sequence_start":true`:     {Start: true},
		`"sequence_end":true,"sequence_id":"\u00e9"`: {Key: "é", End: true},
	} {
		r, _, err := decode(`{"inputs":[],"parameters":{` + parameters + `}}`)
		if err != nil || r.Sequence != want {
			t.Errorf("%s: got %+v, %v", parameters, r.Sequence, err)
		}
	}
}

func TestATimeoutBeyondAllTimeIsTheLongest(t *testing.T) {
	r, _, err := decode(`{"inputs":[],"parameters":{"timeout":18446744073709551615}}`)
	if err != nil || r.Timeout < 100*365*24*time.Hour || r.Timeout*2 < r.Timeout {
		t.Errorf("got %v, %v", r.Timeout, err)
	}
}

func TestWrongEnvelopeIsRefused(t *testing.T) {
	const oneOf = "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'. But"
	const a = `"name":"A","datatype":"INT32","shape":[1]`
	syntax := func(text string) refusal {
		return refusal{errs.InvalidJSON, "failed to parse the request JSON buffer: " + text}
	}
	for _, c := range []struct {
		name, body string
		want       refusal
	}{
		{"nothing", ``, syntax("The document is empty. at 0")},
		{"only space", " \n", syntax("The document is empty. at 2")},
		{"cut off", `{"inputs":[`, syntax("Invalid value. at 11")},
		{"no name", `{1:2}`, syntax("Missing a name for object member. at 1")},
		{"no colon", `{"a" 2}`, syntax("Missing a colon after a name of object member. at 5")},
		{"no comma", `{"a":2 "b"}`, syntax("Missing a comma or '}' after an object member. at 7")},
		{"open string", `{"a`, syntax("Missing a closing quotation mark in string. at 3")},
		{"text after the end", `{"inputs":[]} x`, syntax("The document root must not be followed by other values. at 14")},
		{"a word", `{"a":nul}`, syntax("Invalid value. at 8")},
		{"a deep member that nobody reads", `{"x":` + strings.Repeat("[", 102) + strings.Repeat("]", 102) + `}`, refusal{errs.TensorDataInvalid, "JSON nesting depth exceeds maximum allowed limit (100)"}},
		{"an array", `[]`, refusal{errs.InvalidJSON, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"}},
		{"no inputs", `{"id":"x"}`, refusal{errs.InvalidJSON, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"}},
		{"inputs not an array", `{"inputs":{}}`, refusal{errs.InvalidJSON, "Unable to parse 'inputs': attempt to access JSON non-array as array"}},
		{"outputs not an array", `{"outputs":1,"inputs":[]}`, refusal{errs.InvalidJSON, "Unable to parse 'outputs': attempt to access JSON non-array as array"}},
		{"id not a string", `{"id":1}`, refusal{errs.InvalidJSON, "Unable to parse 'id': attempt to access JSON non-string as string"}},
		{"input not an object", `{"inputs":[1]}`, refusal{errs.TensorDataInvalid, oneOf + " no field is set"}},
		{"input without data", `{"inputs":[{` + a + `}]}`, refusal{errs.TensorDataInvalid, oneOf + " no field is set"}},
		{"input with data twice", `{"inputs":[{` + a + `,"data":[1],"parameters":{"binary_data_size":4}}]}`, refusal{errs.TensorDataInvalid, oneOf + " set 'data' 'binary_data_size'"}},
		{"input without name", `{"inputs":[{"datatype":"INT32","shape":[1],"data":[1]}]}`, refusal{errs.InvalidJSON, "Unable to parse 'name': attempt to access non-existing object member 'name'"}},
		{"input without datatype", `{"inputs":[{"name":"A","shape":[1],"data":[1]}]}`, refusal{errs.InvalidJSON, "Unable to parse 'datatype': attempt to access non-existing object member 'datatype'"}},
		{"input without shape", `{"inputs":[{"name":"A","datatype":"INT32","data":[1]}]}`, refusal{errs.InvalidJSON, "Unable to parse 'shape': attempt to access non-existing object member 'shape'"}},
		{"negative dimension", `{"inputs":[{"name":"A","datatype":"INT32","shape":[-1],"data":[1]}]}`, refusal{errs.InvalidJSON, "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer"}},
		{"dimension not a number", `{"inputs":[{"shape":["1"]}]}`, refusal{errs.InvalidJSON, "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer"}},
		{"dimension too large", `{"inputs":[{"shape":[9223372036854775808]}]}`, refusal{errs.InvalidJSON, "Unable to parse 'shape': dimension 9223372036854775808 exceeds maximum size of 9223372036854775807"}},
		{"bytes too many", `{"inputs":[{"name":"A","datatype":"INT32","shape":[4,1152921504606846978],"data":[1]}]}`, refusal{errs.ShapeMismatch, "byte size overflow for input 'A': its shape [4,1152921504606846978] has more than 9223372036854775807 bytes of INT32"}},
		{"product too large", `{"inputs":[{"name":"A","datatype":"INT32","shape":[4294967296,4294967296],"data":[1]}]}`, refusal{errs.ShapeMismatch, "shape [4294967296,4294967296] of input 'A' causes total element count to exceed maximum size of 9223372036854775807"}},
		{"binary size not a number", `{"inputs":[{` + a + `,"parameters":{"binary_data_size":"4"}}]}`, refusal{errs.InvalidJSON, "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned-integer as unsigned-integer"}},
		{"region not a string", `{"inputs":[{` + a + `,"parameters":{"shared_memory_region":7}}]}`, refusal{errs.InvalidJSON, "Unable to parse 'shared_memory_region': attempt to access JSON non-string as string"}},
		{"region's size not a number", `{"outputs":[{"name":"X","parameters":{"shared_memory_byte_size":"4"}}]}`, refusal{errs.InvalidJSON, "Unable to parse 'shared_memory_byte_size': attempt to access JSON non-unsigned-integer as unsigned-integer"}},
		{"region's offset negative", `{"inputs":[{` + a + `,"parameters":{"shared_memory_offset":-1}}]}`, refusal{errs.InvalidJSON, "Unable to parse 'shared_memory_offset': attempt to access JSON non-unsigned-integer as unsigned-integer"}},
		{"region and data", `{"inputs":[{` + a + `,"data":[1],"parameters":{"shared_memory_region":"r"}}]}`, refusal{errs.TensorDataInvalid, oneOf + " set 'data' 'shared_memory_region'"}},
		{"a region's size alone", `{"inputs":[{` + a + `,"parameters":{"shared_memory_byte_size":4}}]}`, refusal{errs.TensorDataInvalid, oneOf + " no field is set"}},
		{"output without name", `{"outputs":[{}]}`, refusal{errs.InvalidJSON, "Unable to parse 'name': attempt to access non-existing object member 'name'"}},
		{"output not an object", `{"outputs":["X"]}`, refusal{errs.InvalidJSON, "Unable to parse 'name': attempt to access non-existing object member 'name'"}},
		{"output form not a boolean", `{"outputs":[{"name":"X","parameters":{"binary_data":1}}]}`, refusal{errs.InvalidJSON, "Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean"}},
		{"region and classes", `{"outputs":[{"name":"X","parameters":{"shared_memory_region":"r","classification":2}}]}`, refusal{errs.InvalidParameter, "Output can't set both 'shared_memory_region' and 'classification'"}},
		{"region and bytes", `{"outputs":[{"name":"X","parameters":{"shared_memory_region":"r","binary_data":true}}]}`, refusal{errs.InvalidParameter, "Output can't set both 'shared_memory_region' and 'binary_data'"}},
		{"classes that are no number", `{"outputs":[{"name":"X","parameters":{"classification":-2}}]}`, refusal{errs.InvalidJSON, "Unable to parse 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer"}},
		{"parameters not an object", `{"parameters":[]}`, refusal{errs.InvalidJSON, "failed to get request params.: attempt to get members for non-object"}},
		{"null parameter", `{"parameters":{"k":null}}`, refusal{errs.InvalidParameter, "parameter 'k' has invalid type. It should be either 'int', 'bool', or 'string'."}},
		{"array parameter", `{"parameters":{"k":[1]}}`, refusal{errs.InvalidParameter, "parameter 'k' has invalid type. It should be either 'int', 'bool', or 'string'."}},
		{"reserved parameter", `{"parameters":{"triton_x":1}}`, refusal{errs.InvalidParameter, "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."}},
		{"sequence id", `{"parameters":{"sequence_id":-1}}`, refusal{errs.InvalidJSON, "Unable to parse 'sequence_id': attempt to access JSON non-string as string"}},
		{"sequence start", `{"parameters":{"sequence_start":1}}`, refusal{errs.InvalidJSON, "Unable to parse 'sequence_start': attempt to access JSON non-boolean as boolean"}},
		{"priority", `{"parameters":{"priority":1.5}}`, refusal{errs.InvalidJSON, "Unable to parse 'priority': attempt to access JSON non-unsigned-integer as unsigned-integer"}},
		{"timeout", `{"parameters":{"timeout":"1"}}`, refusal{errs.InvalidJSON, "Unable to parse 'timeout': attempt to access JSON non-unsigned-integer as unsigned-integer"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, _, err := decode(c.body)
			if d := cmp.Diff(c.want, refusalOf(err)); d != "" {
				t.Errorf("%s: %s", c.body, d)
			}
			r.Release()
		})
	}
}

// Names that the model has are not copied, and what was read does not change
// when the body's memory is used again.
func TestNothingRefersToTheBody(t *testing.T) {
	body := []byte(`{"id":"one","inputs":[{"name":"A","datatype":"BYTES","shape":[1],"data":["abc"]}],"outputs":[{"name":"X"}],"parameters":{"k":"v"}}`)
	d := jsoninfer.Decoder{Pool: tensor.NewPool(0), MaxTensor: 1 << 20}
	r, e := &infer.Request{}, &jsoninfer.Envelope{}
	if err := d.Decode(body, &modelconfig.Config{}, r, e); err != nil {
		t.Fatal(err)
	}
	for i := range body {
		body[i] = '?'
	}
	data, _ := r.Inputs[0].Data.Bytes()
	got := []any{r.ID, r.Inputs[0].Name, string(data), r.Outputs[0].Name, e.Outputs[0].Name, r.Parameters[0]}
	want := []any{"one", "A", "\x03\x00\x00\x00abc", "X", "X", infer.Parameter{Key: "k", Value: "v"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestTensorsInSharedMemoryAreListed(t *testing.T) {
	_, e, err := decode(`{"inputs":[{"name":"A","datatype":"FP32","shape":[1],"data":[1]},
		{"parameters":{"shared_memory_byte_size":18446744073709551615,"shared_memory_region":"in","shared_memory_offset":4},"shape":[1],"datatype":"FP32","name":"B"}],
		"outputs":[{"name":"X"},{"name":"Y","parameters":{"shared_memory_region":"out","shared_memory_byte_size":8,"binary_data":false}}],
		"parameters":{"binary_data_output":true}}`)
	if err != nil {
		t.Fatal(err)
	}
	want := jsoninfer.Envelope{
		BinaryOutputs: true,
		Outputs:       []jsoninfer.OutputForm{{Name: "X"}, {Name: "Y", Shared: true}},
		SharedInputs:  []regions.Input{{Index: 1, Range: regions.Range{Region: "in", Offset: 4, Size: math.MaxUint64}}},
		SharedOutputs: []regions.Output{{Name: "Y", Range: regions.Range{Region: "out", Size: 8}}},
	}
	if d := cmp.Diff(want, *e); d != "" {
		t.Error(d)
	}
}
