package python

import (
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// inputShape is an input's shape as the model sees it.
func (m *model) inputShape(t *infer.Tensor) tensor.Shape {
	io := m.reshaped[t.Name]
	if io == nil {
		return t.Shape
	}
	return m.reshape(t.Shape, io.Dims, io.Reshape)
}

// outputShape is a new shape of an output as clients see it. One that is not as the
// configuration has it stays as it is.
func (m *model) outputShape(name string, shape tensor.Shape) tensor.Shape {
	io := m.reshaped[name]
	row := shape
	if m.version.Config.Batches() && len(row) > 0 {
		row = row[1:]
	}
	if io == nil || !io.Reshape.Admits(row) {
		return append(make(tensor.Shape, 0, len(shape)), shape...)
	}
	return m.reshape(shape, io.Reshape, io.Dims)
}

// reshape gives a shape of the pattern from, behind the batch dimension, that of the
// pattern to, whose variable dimensions are taken in order.
func (m *model) reshape(shape, from, to tensor.Shape) tensor.Shape {
	result := make(tensor.Shape, 0, len(to)+1)
	if m.version.Config.Batches() {
		result, shape = append(result, shape[0]), shape[1:]
	}
	next := 0
	for _, d := range to {
		if d >= 0 {
			result = append(result, d)
			continue
		}
		for from[next] >= 0 {
			next++
		}
		result = append(result, shape[next])
		next++
	}
	return result
}
