//go:build cgo

package onnxruntime

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// check finds the model's inputs in a request, -1 for an optional one that is
// not there, and makes sure that the bytes are those of the shapes. The
// gateway has done so before; this is the fence in front of C.
func (m *model) check(r *infer.Request, at []int32) error {
	for p := range m.inputs {
		io := &m.inputs[p]
		at[p] = findInput(r.Inputs, io.io.Name, p)
		if at[p] >= 0 {
			if err := m.checkInput(io, r, &r.Inputs[at[p]]); err != nil {
				return err.WithModel(m.version.Ref.Name)
			}
			continue
		}
		if !io.io.Optional {
			return errs.New(errs.InputMissing, "input '%s' is missing for model '%s'", io.io.Name, m.version.Ref.Name).
				WithModel(m.version.Ref.Name)
		}
	}
	return nil
}

// findInput looks at the guessed index first: clients mostly send inputs in
// the order of the metadata.
func findInput(inputs []infer.Tensor, name string, guess int) int32 {
	if guess < len(inputs) && inputs[guess].Name == name {
		return int32(guess)
	}
	for i := range inputs {
		if inputs[i].Name == name {
			return int32(i)
		}
	}
	return -1
}

func (m *model) checkInput(p *tensorBinding, r *infer.Request, t *infer.Tensor) *errs.Error {
	if t.Datatype != p.io.Datatype {
		return errs.New(errs.DatatypeMismatch, "inference input '%s' data-type is '%s', but model '%s' expects '%s'",
			t.Name, t.Datatype, m.version.Ref.Name, p.io.Datatype)
	}
	row, ok := t.Shape, true
	if p.batches {
		ok = len(t.Shape) > 0 && t.Shape[0] == r.BatchSize
		row = row[min(1, len(row)):]
	}
	if !ok || !p.io.Dims.Admits(row) {
		return errs.New(errs.ShapeMismatch, "unexpected shape for input '%s' for model '%s'. Expected %s, got %s.",
			t.Name, m.version.Ref.Name, m.version.Config.ClientShape(p.io), t.Shape)
	}
	if p.io.Datatype == tensor.Bytes {
		return m.checkStrings(t)
	}
	if n, ok := t.Shape.ByteSize(t.Datatype); !ok || n != t.Data.Length {
		return errs.New(errs.ByteSizeMismatch, "input byte size mismatch for input '%s' for model '%s'. Expected %d, got %d",
			t.Name, m.version.Ref.Name, n, t.Data.Length)
	}
	return nil
}

// checkStrings refuses a BYTES tensor that is too short for its elements, so
// that a large shape alone cannot ask for memory. The elements themselves are
// walked where they are copied.
func (m *model) checkStrings(t *infer.Tensor) *errs.Error {
	const lengthBytes = 4
	if n, ok := t.Shape.Elements(); !ok || n > t.Data.Length/lengthBytes {
		return errs.New(errs.TensorDataInvalid, "expected %d string elements for inference input '%s' for model '%s', got %d bytes",
			n, t.Name, m.version.Ref.Name, t.Data.Length)
	}
	return nil
}

// joins reports whether requests a and b can share a run: the same inputs,
// of the same shape but for their rows, padded where they may be, or ragged.
func (m *model) joins(requests []*infer.Request, inputAt []int32, a, b int) bool {
	if !m.version.Config.Batches() {
		return false
	}
	n := len(m.inputs)
	for p := range m.inputs {
		x, y := inputAt[a*n+p], inputAt[b*n+p]
		if x < 0 || y < 0 {
			return false
		}
		if m.inputs[p].io.Ragged {
			continue
		}
		if !m.version.Config.Padding.Alike(m.inputs[p].io.Name, requests[a].Inputs[x].Shape[1:], requests[b].Inputs[y].Shape[1:]) {
			return false
		}
	}
	return true
}
