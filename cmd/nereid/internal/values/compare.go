package values

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"

	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// Range is from where random numbers are drawn: Low included, High not.
type Range struct{ Low, High float64 }

// Random draws a tensor of a description without open dimensions: numbers of a range, and
// BYTES elements that are whole numbers of it in decimals.
func Random(rng *rand.Rand, of client.Description, r Range) client.Tensor {
	elements, _ := of.Shape.Elements()
	t := client.Tensor{Description: of}
	for range elements {
		drawn := r.Low + rng.Float64()*(r.High-r.Low)
		whole := int64(math.Floor(drawn))
		switch kindOf(of.Datatype) {
		case floating:
			t.Data = appendRaw(t.Data, floatBits(of.Datatype, drawn), of.Datatype.Size())
		case signed, unsigned:
			t.Data = appendRaw(t.Data, uint64(whole), of.Datatype.Size()) //nolint:gosec // the low bytes are the number
		case boolean:
			t.Data = append(t.Data, byte(rng.IntN(2)))
		case text:
			t.Data = tensor.AppendBytes(t.Data, strconv.FormatInt(whole, 10))
		}
	}
	return t
}

// Tolerance is by how much a number may differ from its reference: by Absolute, and by
// Relative times the reference. Elements that are no floating-point numbers may not.
type Tolerance struct{ Absolute, Relative float64 }

// Difference is how two outputs differ.
type Difference struct {
	// Elements were compared, of which Beyond differ by more than the tolerance.
	Elements, Beyond int
	// Largest is the largest difference of a number, and Sum that of all.
	Largest, Sum float64
	// Rows are those of the last dimension, of which Agree have their largest number at the
	// same place; 0 where these are not numbers in rows.
	Rows, Agree int
}

// Add adds another difference of the same output.
func (d *Difference) Add(other Difference) {
	d.Elements, d.Beyond = d.Elements+other.Elements, d.Beyond+other.Beyond
	d.Largest, d.Sum = max(d.Largest, other.Largest), d.Sum+other.Sum
	d.Rows, d.Agree = d.Rows+other.Rows, d.Agree+other.Agree
}

// Compare compares an output with a reference. Outputs of another datatype or shape are an
// error, of the reason config_invalid.
func Compare(reference, other client.Tensor, within Tolerance) (Difference, error) {
	if reference.Datatype != other.Datatype || !reference.Shape.Equal(other.Shape) {
		return Difference{}, errs.New(errs.ConfigInvalid, "output %q is %s%s, and %s%s of the other", reference.Name, reference.Datatype, reference.Shape, other.Datatype, other.Shape)
	}
	if kindOf(reference.Datatype) != floating {
		return compareExactly(reference, other)
	}
	if len(reference.Data) != len(other.Data) {
		return Difference{}, errs.New(errs.ConfigInvalid, "output %q has %d bytes, and %d of the other", reference.Name, len(reference.Data), len(other.Data))
	}
	a, b := floatsOf(reference), floatsOf(other)
	d := Difference{Elements: len(a)}
	for i := range a {
		off, same := math.Abs(a[i]-b[i]), a[i] == b[i] || math.IsNaN(a[i]) && math.IsNaN(b[i]) // infinities are equal to themselves
		if same {
			continue
		}
		if d.Sum += off; !(off <= within.Absolute+within.Relative*math.Abs(a[i])) { // also where one is no number
			d.Beyond++
		}
		d.Largest = max(d.Largest, off)
	}
	d.agree(a, b, reference.Shape)
	return d, nil
}

// floatsOf are the numbers of a tensor.
func floatsOf(t client.Tensor) []float64 {
	size := t.Datatype.Size()
	list := make([]float64, len(t.Data)/size)
	for i := range list {
		list[i] = floatOf(t.Datatype, rawOf(t.Data[i*size:(i+1)*size]))
	}
	return list
}

// agree counts the rows whose largest numbers are at the same place.
func (d *Difference) agree(a, b []float64, shape tensor.Shape) {
	if len(shape) == 0 || shape[len(shape)-1] < 2 {
		return
	}
	width := int(shape[len(shape)-1])
	largest := func(row []float64) (at int) {
		for i, v := range row {
			if v > row[at] {
				at = i
			}
		}
		return at
	}
	for i := 0; i+width <= len(a); i += width {
		d.Rows++
		if largest(a[i:i+width]) == largest(b[i:i+width]) {
			d.Agree++
		}
	}
}

// compareExactly compares elements that are no floating-point numbers.
func compareExactly(reference, other client.Tensor) (d Difference, err error) {
	a, b := reference.Data, other.Data
	for len(a) > 0 && len(b) > 0 {
		var one, two []byte
		if one, a, err = cut(reference.Datatype, a); err == nil {
			two, b, err = cut(other.Datatype, b)
		}
		if err != nil {
			return d, fmt.Errorf("output %q: %w", reference.Name, err)
		}
		d.Elements++
		if string(one) != string(two) {
			d.Beyond++
		}
	}
	return d, nil
}

// DefaultRange is from where numbers of a datatype are drawn that nobody has said anything
// about.
func DefaultRange(d tensor.Datatype) Range {
	if kindOf(d) == floating {
		return Range{-1, 1}
	}
	return Range{0, 10}
}
