package values

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/tensor"
)

func numbers(shape tensor.Shape, list ...float32) client.Tensor {
	t := client.Tensor{Description: client.Description{Name: "y", Datatype: tensor.FP32, Shape: shape}}
	for _, f := range list {
		t.Data = binary.LittleEndian.AppendUint32(t.Data, math.Float32bits(f))
	}
	return t
}

func TestDifferencesOfNumbers(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	within := Tolerance{Absolute: 0.1, Relative: 0.01}
	for _, tt := range []struct {
		name string
		a, b client.Tensor
		want Difference
	}{
		{"equal", numbers(tensor.Shape{1, 3}, 1, 5, 2), numbers(tensor.Shape{1, 3}, 1, 5, 2), Difference{Elements: 3, Rows: 1, Agree: 1}},
		{
			"within, and another is largest", numbers(tensor.Shape{2, 2}, 1, 1.0625, 8, 0), numbers(tensor.Shape{2, 2}, 1.0625, 1, 8, 0),
			Difference{Elements: 4, Largest: 0.0625, Sum: 0.125, Rows: 2, Agree: 1},
		},
		{"beyond", numbers(tensor.Shape{2}, 100, 1), numbers(tensor.Shape{2}, 101, 2), Difference{Elements: 2, Beyond: 1, Largest: 1, Sum: 2, Rows: 1, Agree: 1}},
		{"one number", numbers(tensor.Shape{2, 1}, 1, 2), numbers(tensor.Shape{2, 1}, 1, 2), Difference{Elements: 2}},
		{"infinite", numbers(nil, inf), numbers(nil, inf), Difference{Elements: 1}},
		{"no numbers", numbers(nil, nan), numbers(nil, nan), Difference{Elements: 1}},
	} {
		if got, err := Compare(tt.a, tt.b, within); err != nil || got != tt.want {
			t.Errorf("%s: %+v, %v, want %+v", tt.name, got, err, tt.want)
		}
	}
	for name, other := range map[string]client.Tensor{"a number against none": numbers(nil, nan), "a number against infinity": numbers(nil, inf)} {
		if got, err := Compare(numbers(nil, 1), other, within); err != nil || got.Beyond != 1 {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	other := numbers(tensor.Shape{1}, 1)
	if _, err := Compare(numbers(nil, 1), other, within); errs.Of(err) != errs.ConfigInvalid {
		t.Errorf("another shape: %v", err)
	}
}

func TestOthersMayNotDiffer(t *testing.T) {
	text := func(elements ...string) client.Tensor {
		v := client.Tensor{Description: client.Description{Name: "y", Datatype: tensor.Bytes, Shape: tensor.Shape{2}}}
		for _, e := range elements {
			v.Data = tensor.AppendBytes(v.Data, e)
		}
		return v
	}
	got, err := Compare(text("a", "b"), text("a", "c"), Tolerance{Absolute: 10})
	if want := (Difference{Elements: 2, Beyond: 1}); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestDrawnNumbersAreInTheirRange(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, d := range tensor.Datatypes() {
		of := client.Description{Name: "x", Datatype: d, Shape: tensor.Shape{50, 2}}
		drawn := Random(rng, of, Range{3, 7})
		elements, err := Elements(drawn, 100)
		if err != nil || len(elements) != 100 {
			t.Fatalf("%s: %d elements, %v", d, len(elements), err)
		}
		for _, e := range elements {
			switch s := string(e); {
			case d == tensor.Bool:
			case s[0] == '"' && (s < `"3"` || s > `"6"`), s[0] != '"' && (s < "3" || s >= "7"):
				t.Errorf("%s: %s", d, e)
			}
		}
	}
}
