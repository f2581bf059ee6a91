// Package classify replaces an output by its most likely classes. It implements the classification extension
// for all front ends.
//
// A class is the position of a value in its row, and the value is its score. Each requested class becomes the
// text "score:class", or "score:class:label" if the class has a label. The scores of a row are in descending
// order. Equal scores, which Triton leaves in any order, are in the order of their classes, and NaN, which
// Triton cannot sort, comes last.
//
// Only the requested classes are sorted, and scores are not copied: they are read where the worker put them.
// Labels come with the model's configuration.
package classify

import (
	"encoding/binary"
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// MaxElements is the maximum number of values in a row.
const MaxElements = 1_000_000

// maxText bounds the bytes of one output's classes: a small request may ask for many rows of long numbers and
// labels.
const maxText = 64 << 20

// Output requests the classes of an output instead of its values.
type Output struct {
	Name string
	// Classes is the number of classes requested for each row, at least 1. A row with fewer values gives them
	// all.
	Classes uint64
}

// Check refuses, before anything is executed, outputs whose declared datatype cannot be a score. It skips
// outputs that the model does not have.
func Check(c *modelconfig.Config, outputs []Output) error {
	for _, o := range outputs {
		if io := c.Output(o.Name); io != nil && !scores(io.Datatype) {
			return unsupported(io.Datatype)
		}
	}
	return nil
}

// Apply replaces the requested outputs of p by their classes, with datatype BYTES and shape [rows, classes], or
// [classes] if the model does not batch. On an error p may contain both kinds; the caller still owns it.
func Apply(c *modelconfig.Config, outputs []Output, p *infer.Response) error {
	for _, o := range outputs {
		i := slices.IndexFunc(p.Outputs, func(t infer.Tensor) bool { return t.Name == o.Name })
		if i < 0 {
			continue
		}
		var labels []string
		if io := c.Output(o.Name); io != nil {
			labels = io.Labels
		}
		if err := replace(&p.Outputs[i], o.Classes, c.Batches(), labels); err != nil {
			return err
		}
	}
	return nil
}

// replace replaces the values in t by the k best classes of each row.
func replace(t *infer.Tensor, k uint64, batches bool, labels []string) error {
	data, err := t.Data.Bytes()
	if err != nil {
		return err
	}
	if !scores(t.Datatype) {
		return unsupported(t.Datatype)
	}
	if size, ok := t.Shape.ByteSize(t.Datatype); !ok || size != int64(len(data)) {
		return errs.New(errs.ExecutionFailed, "output tensor shape does not match size of output for '%s'", t.Name)
	}
	row := t.Shape
	if batches && len(row) > 0 {
		row = row[1:]
	}
	elements, ok := row.Elements()
	if !ok || elements > MaxElements {
		return errs.New(errs.InvalidParameter, "classification output tensor too large")
	}
	k = min(k, uint64(elements))
	text, err := texts(t, data, int(elements), int(k), labels)
	if err != nil {
		return err
	}
	shape := append(slices.Clone(t.Shape[:len(t.Shape)-len(row)]), int64(k))
	t.Data.Release()
	*t = infer.Tensor{Name: t.Name, Datatype: tensor.Bytes, Shape: shape, Data: tensor.InHeap(text)}
	return nil
}

// texts returns the k best classes of each row of t, as the elements of a BYTES tensor.
func texts(t *infer.Tensor, data []byte, elements, k int, labels []string) ([]byte, error) {
	stride := elements * t.Datatype.Size()
	if k == 0 || len(data) == 0 {
		return nil, nil
	}
	const usual, most = 32, 1 << 20 // bytes of a class, and of a first guess
	text := make([]byte, 0, min(len(data)/stride*k*usual, most))
	best := newRanking(t.Datatype, k, elements)
	for ; len(data) > 0; data = data[stride:] {
		for _, c := range best.of(data[:stride]) {
			start := len(text)
			text = binary.LittleEndian.AppendUint32(text, 0)
			text = appendClass(text, t.Datatype, data, c.class, labels)
			binary.LittleEndian.PutUint32(text[start:], uint32(len(text)-start-4))
		}
		if len(text) > maxText {
			return nil, errs.New(errs.ResponseTooLarge, "classes of output '%s' take more than %d bytes: ask for fewer classes or rows", t.Name, maxText)
		}
	}
	return text, nil
}

// unsupported returns the error with Triton's text.
func unsupported(d tensor.Datatype) error {
	return errs.New(errs.InvalidParameter, "class result not available for output due to unsupported type '%s'", d)
}
