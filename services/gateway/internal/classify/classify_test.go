package classify_test

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/classify"
)

// bytesOf are values of a fixed size as they lie in a tensor.
func bytesOf(t testing.TB, values any) []byte {
	t.Helper()
	data, err := binary.Append(nil, binary.LittleEndian, values)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// model declares one output OUT of a datatype.
func model(d tensor.Datatype, batches bool, labels ...string) *modelconfig.Config {
	c := &modelconfig.Config{Outputs: []modelconfig.IO{{Name: "OUT", Datatype: d, Labels: labels}}}
	if batches {
		c.MaxBatchSize = 8
	}
	return c
}

func response(d tensor.Datatype, shape tensor.Shape, data []byte) *infer.Response {
	return &infer.Response{Outputs: []infer.Tensor{{Name: "OUT", Datatype: d, Shape: shape, Data: tensor.InHeap(data)}}}
}

// elements reads the elements of a BYTES tensor.
func elements(t testing.TB, out *infer.Tensor) []string {
	t.Helper()
	data, err := out.Data.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for len(data) > 0 {
		element, rest, err := tensor.CutBytes(data)
		if err != nil {
			t.Fatal(err)
		}
		list, data = append(list, string(element)), rest
	}
	return list
}

func TestClassesAreWrittenAsTriton(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		name   string
		d      tensor.Datatype
		shape  tensor.Shape
		values any
		k      uint64
		single bool // the model does not batch
		labels []string
		dims   tensor.Shape
		want   []string
	}{
		{name: "the best of a row", d: tensor.FP32, shape: tensor.Shape{1, 4}, values: []float32{.1, .5, -.25, .4}, k: 2, dims: tensor.Shape{1, 2}, want: []string{"0.500000:1", "0.400000:3"}},
		{name: "of each row its own", d: tensor.FP32, shape: tensor.Shape{2, 3}, values: []float32{1, 2, 3, 6, 5, 4}, k: 1, dims: tensor.Shape{2, 1}, want: []string{"3.000000:2", "6.000000:0"}},
		{name: "more than there are", d: tensor.Int32, shape: tensor.Shape{1, 3}, values: []int32{7, -9, 8}, k: math.MaxUint64, dims: tensor.Shape{1, 3}, want: []string{"8:2", "7:0", "-9:1"}},
		{name: "a row of two dimensions is one list", d: tensor.Uint8, shape: tensor.Shape{2, 2, 2}, values: []uint8{0, 1, 2, 255, 9, 8, 7, 6}, k: 2, dims: tensor.Shape{2, 2}, want: []string{"255:3", "2:2", "9:0", "8:1"}},
		{name: "without a batch dimension all is one list", d: tensor.Int16, single: true, shape: tensor.Shape{2, 2}, values: []int16{1, 4, -3, 2}, k: 3, dims: tensor.Shape{3}, want: []string{"4:1", "2:3", "1:0"}},
		{name: "a scalar", d: tensor.FP64, single: true, shape: tensor.Shape{}, values: []float64{2}, k: 3, dims: tensor.Shape{1}, want: []string{"2.000000:0"}},
		{name: "a row of nothing but the row", d: tensor.Int64, shape: tensor.Shape{2}, values: []int64{3, 4}, k: 3, dims: tensor.Shape{2, 1}, want: []string{"3:0", "4:0"}},
		{name: "no rows", d: tensor.FP32, shape: tensor.Shape{0, 5}, values: []float32{}, k: 3, dims: tensor.Shape{0, 3}},
		{name: "no classes", d: tensor.FP32, shape: tensor.Shape{2, 0}, values: []float32{}, k: 3, dims: tensor.Shape{2, 0}},
		{name: "ties in the order of classes", d: tensor.Int8, shape: tensor.Shape{1, 6}, values: []int8{1, 3, 2, 3, 2, 3}, k: 4, dims: tensor.Shape{1, 4}, want: []string{"3:1", "3:3", "3:5", "2:2"}},
		{name: "zeros are equal", d: tensor.FP32, shape: tensor.Shape{1, 2}, values: []float32{float32(math.Copysign(0, -1)), 0}, k: 2, dims: tensor.Shape{1, 2}, want: []string{"-0.000000:0", "0.000000:1"}},
		{name: "what is no number comes last", d: tensor.FP32, shape: tensor.Shape{1, 5}, values: []float32{nan, -inf, inf, 1, -nan}, k: 5, dims: tensor.Shape{1, 5}, want: []string{"inf:2", "1.000000:3", "-inf:1", "nan:0", "-nan:4"}},
		{name: "without exponent", d: tensor.FP64, shape: tensor.Shape{1, 2}, values: []float64{1e21, 1e-9}, k: 2, dims: tensor.Shape{1, 2}, want: []string{"1000000000000000000000.000000:0", "0.000000:1"}},
		{name: "singles as the doubles that they are", d: tensor.FP32, shape: tensor.Shape{1, 1}, values: []float32{16777.215}, k: 1, dims: tensor.Shape{1, 1}, want: []string{"16777.214844:0"}},
		{name: "ends of the integers", d: tensor.Int64, shape: tensor.Shape{1, 3}, values: []int64{math.MinInt64, 0, math.MaxInt64}, k: 3, dims: tensor.Shape{1, 3}, want: []string{"9223372036854775807:2", "0:1", "-9223372036854775808:0"}},
		{name: "unsigned ones", d: tensor.Uint64, shape: tensor.Shape{1, 2}, values: []uint64{1, math.MaxUint64}, k: 2, dims: tensor.Shape{1, 2}, want: []string{"18446744073709551615:1", "1:0"}},
		{name: "unsigned of two bytes", d: tensor.Uint16, shape: tensor.Shape{1, 2}, values: []uint16{1, math.MaxUint16}, k: 2, dims: tensor.Shape{1, 2}, want: []string{"65535:1", "1:0"}},
		{name: "unsigned of four bytes", d: tensor.Uint32, shape: tensor.Shape{1, 2}, values: []uint32{1, math.MaxUint32}, k: 2, dims: tensor.Shape{1, 2}, want: []string{"4294967295:1", "1:0"}},
		{name: "labels, where there are any", d: tensor.FP32, shape: tensor.Shape{1, 4}, values: []float32{4, 3, 2, 1}, k: 4, labels: []string{"cat", "", "a:b"}, dims: tensor.Shape{1, 4}, want: []string{"4.000000:0:cat", "3.000000:1", "2.000000:2:a:b", "1.000000:3"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := response(c.d, c.shape, bytesOf(t, c.values))
			err := classify.Apply(model(c.d, !c.single, c.labels...), []classify.Output{{Name: "OUT", Classes: c.k}}, p)
			if err != nil {
				t.Fatal(err)
			}
			out := &p.Outputs[0]
			if out.Name != "OUT" || out.Datatype != tensor.Bytes || !out.Shape.Equal(c.dims) {
				t.Errorf("output is %s %s %v, want BYTES %v", out.Name, out.Datatype, out.Shape, c.dims)
			}
			if d := cmp.Diff(c.want, elements(t, out)); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestDatatypesWithoutScoresAreRefused(t *testing.T) {
	for _, d := range []tensor.Datatype{tensor.Bool, tensor.FP16, tensor.BF16, tensor.Bytes} {
		want := "class result not available for output due to unsupported type '" + d.String() + "'"
		asked := []classify.Output{{Name: "OTHER", Classes: 1}, {Name: "OUT", Classes: 1}}
		err := classify.Check(model(d, true), asked)
		if errs.Of(err) != errs.InvalidParameter || errs.From(err).Msg != want {
			t.Errorf("Check of %s: %v, want %q", d, err, want)
		}
		err = classify.Apply(model(d, true), asked, response(d, tensor.Shape{1, 0}, nil))
		if errs.Of(err) != errs.InvalidParameter || errs.From(err).Msg != want {
			t.Errorf("Apply to %s: %v, want %q", d, err, want)
		}
	}
	for _, d := range tensor.Datatypes() {
		if d.Size() < 4 {
			continue // half of them are above
		}
		if err := classify.Check(model(d, true), []classify.Output{{Name: "OUT", Classes: 1}}); err != nil {
			t.Errorf("Check of %s: %v", d, err)
		}
	}
}

func TestOutputsThatCannotBeClassified(t *testing.T) {
	for _, c := range []struct {
		name   string
		d      tensor.Datatype
		shape  tensor.Shape
		size   int
		labels []string
		k      uint64
		reason errs.Reason
		text   string
	}{
		{"a row too long", tensor.Uint8, tensor.Shape{1, classify.MaxElements + 1}, classify.MaxElements + 1, nil, 1, errs.InvalidParameter, "classification output tensor too large"},
		{"fewer bytes than the shape says", tensor.FP32, tensor.Shape{1, 2}, 7, nil, 1, errs.ExecutionFailed, "output tensor shape does not match size of output for 'OUT'"},
		{"text without bound", tensor.Uint8, tensor.Shape{70, 1}, 70, []string{strings.Repeat("x", 1<<20)}, 1, errs.ResponseTooLarge, "classes of output 'OUT' take more than 67108864 bytes: ask for fewer classes or rows"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := response(c.d, c.shape, make([]byte, c.size))
			err := classify.Apply(model(c.d, true, c.labels...), []classify.Output{{Name: "OUT", Classes: c.k}}, p)
			if errs.Of(err) != c.reason || errs.From(err).Msg != c.text {
				t.Errorf("got %v, want %s: %s", err, c.reason, c.text)
			}
		})
	}
}

func TestOnlyWhatIsAskedForIsReplaced(t *testing.T) {
	freed := 0
	tensorOf := func(name string) infer.Tensor {
		b := tensor.Wrap(make([]byte, 4), false, func(*tensor.Buffer) { freed++ })
		return infer.Tensor{Name: name, Datatype: tensor.FP32, Shape: tensor.Shape{1}, Data: tensor.InBuffer(b, 0, 4)}
	}
	p := &infer.Response{Outputs: []infer.Tensor{tensorOf("A"), tensorOf("OUT")}}
	err := classify.Apply(model(tensor.FP32, false), []classify.Output{{Name: "OUT", Classes: 1}, {Name: "ABSENT", Classes: 1}}, p)
	if err != nil || freed != 1 || p.Outputs[0].Datatype != tensor.FP32 {
		t.Errorf("%v, %d buffers freed and A is %s: want the old bytes of OUT freed and A as it was", err, freed, p.Outputs[0].Datatype)
	}
	p.Release()
	if freed != 2 {
		t.Errorf("%d buffers freed at the end, want 2", freed)
	}
}
