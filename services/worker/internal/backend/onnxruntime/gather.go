//go:build cgo

package onnxruntime

import (
	"unsafe"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// gather sets up the call for the group: inputs joined in the arena, or taken
// where they lie, and room for the outputs whose size is known.
func (in *instance) gather(requests []*infer.Request) error {
	rows := in.rows(requests)
	if limit := in.model.version.Config.MaxBatchSize; limit > 0 && rows > limit {
		return errs.New(errs.ExecutionFailed, "batch size %d for '%s', max allowed is %d", rows, in.model.version.Ref.Name, limit).
			WithModel(in.model.version.Ref.Name)
	}
	in.batchRows = rows
	if err := in.checkPadded(requests); err != nil {
		return err
	}
	in.chooseOutputs(requests, rows)
	if err := in.arena.reserve(in.arenaBytes(requests) + in.makeBatchInputs(requests)); err != nil {
		return in.failed(err)
	}
	in.call.begin()
	for p := range in.model.inputs {
		if in.input(requests, in.group[0], p) == nil {
			continue
		}
		if err := in.gatherInput(requests, p, rows); err != nil {
			return err
		}
	}
	in.addBatchInputs()
	in.countScattered(requests)
	return in.bindOutputs(rows)
}

func (in *instance) failed(err error) error {
	return errs.Wrap(errs.ExecutionFailed, err, "%v", err).WithModel(in.model.version.Ref.Name)
}

func (in *instance) rows(requests []*infer.Request) int64 {
	rows := int64(0)
	for _, i := range in.group {
		rows += requests[i].BatchSize
	}
	return rows
}

// input returns input p of request i, or nil.
func (in *instance) input(requests []*infer.Request, i, p int) *infer.Tensor {
	at := in.inputAt[i*len(in.model.inputs)+p]
	if at < 0 {
		return nil
	}
	return &requests[i].Inputs[at]
}

// arenaBytes is what the run needs of the arena.
func (in *instance) arenaBytes(requests []*infer.Request) int64 {
	total := int64(0)
	for p := range in.model.inputs {
		if in.input(requests, in.group[0], p) == nil || in.asIs(requests, p) {
			continue
		}
		total += aligned(in.inputBytes(requests, p))
	}
	for k := range in.outputs {
		if o := &in.outputs[k]; o.inArena() {
			total += aligned(o.bytes)
		}
	}
	return total
}

// inPlace reports whether the group's only request has the tensor where the
// runtime can read it.
func (in *instance) inPlace(t *infer.Tensor) bool {
	if len(in.group) != 1 || !t.Data.Mapped() || t.Data.Length == 0 {
		return false
	}
	size := int64(max(t.Datatype.Size(), 1))
	start := uintptr(unsafe.Pointer(unsafe.SliceData(t.Data.Buffer.Bytes())))
	return (int64(start)+t.Data.Offset)%size == 0
}

// asIs reports whether the group's input p needs no copy.
func (in *instance) asIs(requests []*infer.Request, p int) bool {
	first := in.input(requests, in.group[0], p)
	return in.inPlace(first) && (in.model.inputs[p].padding == nil || first.Shape.Equal(in.padded(requests, in.group[0], p)))
}

func (in *instance) gatherInput(requests []*infer.Request, p int, rows int64) error {
	io := &in.model.inputs[p]
	first := in.input(requests, in.group[0], p)
	data, err := in.join(requests, p)
	if err != nil {
		return in.failed(err)
	}
	client := first.Shape
	if io.padding != nil {
		client = in.padded(requests, in.group[0], p)
	}
	in.shape = io.appendModelShape(in.shape[:0], client, rows)
	if io.io.Ragged {
		in.shape = append(in.shape[:0], in.raggedElements(requests, p))
	}
	in.call.addInput(io.name, io.element, in.shape, data)
	return nil
}

// join returns the bytes of input p of the whole group, in memory that C may
// see.
func (in *instance) join(requests []*infer.Request, p int) ([]byte, error) {
	if in.asIs(requests, p) {
		return in.input(requests, in.group[0], p).Data.Bytes()
	}
	joined := in.arena.take(in.inputBytes(requests, p))
	rest := joined
	for _, i := range in.group {
		data, err := in.input(requests, i, p).Data.Bytes()
		if err != nil {
			return nil, err
		}
		n := len(data)
		if in.model.inputs[p].padding != nil {
			n = in.pad(rest, data, requests, i, p)
		} else {
			copy(rest, data)
		}
		rest = rest[n:]
	}
	return joined, nil
}

// inputBytes is the size of input p of the whole group, padded; checkPadded has
// seen that there is one.
func (in *instance) inputBytes(requests []*infer.Request, p int) (total int64) {
	if in.model.inputs[p].padding != nil {
		total, _ = in.groupShape(requests, p).ByteSize(in.model.inputs[p].io.Datatype)
		return total
	}
	for _, i := range in.group {
		total += in.input(requests, i, p).Data.Length
	}
	return total
}

// raggedElements counts the elements of a ragged input, whose requests are
// laid end to end without a batch dimension.
func (in *instance) raggedElements(requests []*infer.Request, p int) int64 {
	total := int64(0)
	for _, i := range in.group {
		// The shape was checked to be sane.
		n, _ := in.input(requests, i, p).Shape.Elements()
		total += n
	}
	return total
}

// chooseOutputs lists the outputs that a request of the group wants.
func (in *instance) chooseOutputs(requests []*infer.Request, rows int64) {
	in.outputs = in.outputs[:0]
	for k := range in.model.outputs {
		p := &in.model.outputs[k]
		if !in.wanted(requests, p.io.Name) {
			continue
		}
		o := output{binding: p, pool: in.arena.pool, engine: in.call.engine}
		if p.rowBytes > 0 {
			o.bytes = rows * p.rowBytes
		}
		in.outputs = append(in.outputs, o)
	}
}

func (in *instance) wanted(requests []*infer.Request, name string) bool {
	for _, i := range in.group {
		if requests[i].Wants(name) {
			return true
		}
	}
	return false
}

// bindOutputs gives the outputs of known size their memory.
func (in *instance) bindOutputs(rows int64) error {
	for k := range in.outputs {
		o := &in.outputs[k]
		in.shape = in.shape[:0]
		var data []byte
		switch {
		case o.inArena():
			o.bound = in.arena.take(o.bytes)
			data = o.bound
		case o.bytes > 0:
			b, err := in.arena.pool.Get(int(o.bytes))
			if err != nil {
				return in.failed(err)
			}
			o.buffer, data = b, b.Bytes()
		}
		if data != nil {
			if o.binding.batches {
				in.shape = append(in.shape, rows)
			}
			in.shape = append(in.shape, o.binding.row...)
		}
		in.call.addOutput(o.binding.name, o.binding.element, in.shape, data)
	}
	return nil
}

// inArena reports whether the output is small enough to be copied out of the
// arena.
func (o *output) inArena() bool { return o.bytes > 0 && o.bytes < tensor.MappedThreshold }
