//go:build cgo

package onnxruntime

import (
	"errors"
	"fmt"
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// instance runs batches of a model one after another. All fields but call's
// stop are owned by the goroutine in Execute.
type instance struct {
	model *model
	call  *call
	stop  func() // call.stop, made once
	arena arena
	room  room // of the GPU's memory
	// shrinking says that the GPU's arena gives its memory back after each run, for want of it.
	shrinking bool
	ran       bool // once

	// What follows is scratch, kept from batch to batch.

	left, group []int   // indexes of requests: still to run, in this run
	inputAt     []int32 // request × input: its index in the request, or -1
	shape, row  tensor.Shape
	outputs     []output
	batchRows   int64   // rows of this run
	numbers     []int64 // of the batch inputs, one after another
	ends        []int   // where each of them ends in numbers
}

func newInstance(m *model, c *call) *instance {
	m.backend.options.running(1)
	in := &instance{
		model: m, call: c, stop: c.stop,
		arena: arena{pool: m.backend.options.Pool},
		shape: make(tensor.Shape, 0, maxRank),
	}
	if m.gpu != nil {
		in.arena.pin = m.gpu.pin
	}
	return in
}

// Credits is 1: an instance runs one batch at a time.
func (in *instance) Credits() int { return 1 }

// Close frees the instance's memory.
func (in *instance) Close() error {
	in.call.close()
	in.arena.free()
	in.model.backend.options.running(-1)
	return nil
}

// Execute runs the batch and returns when it is done. Requests that cannot
// share a run, because their shapes differ or the model does not batch, are
// run one after another.
func (in *instance) Execute(b backend.Batch) {
	marks := phases{batch: b}
	in.call.resume() // a stop may have come after the last run's end
	b.OnCancel(in.stop)
	in.admit(b)
	for len(in.left) > 0 {
		in.split(b.Requests())
		in.run(b, &marks)
	}
	marks.finish()
	b.Done()
}

// admit lists the requests that can be run and fails the others.
func (in *instance) admit(b backend.Batch) {
	requests := b.Requests()
	in.left = in.left[:0]
	n := len(in.model.inputs)
	in.inputAt = grow(in.inputAt, len(requests)*n)
	for i, r := range requests {
		if err := in.model.check(r, in.inputAt[i*n:(i+1)*n]); err != nil {
			b.Respond(i, &infer.Response{Final: true, Err: err})
			continue
		}
		in.left = append(in.left, i)
	}
}

// split moves the requests that can share a run with the first one left into
// the group.
func (in *instance) split(requests []*infer.Request) {
	first := in.left[0]
	in.group = append(in.group[:0], first)
	rows := requests[first].BatchSize
	rest := in.left[:0]
	for _, i := range in.left[1:] {
		if in.room.admits(rows+requests[i].BatchSize) && in.model.joins(requests, in.inputAt, first, i) {
			in.group = append(in.group, i)
			rows += requests[i].BatchSize
			continue
		}
		rest = append(rest, i)
	}
	in.left = rest
}

// run executes the group and answers its requests.
func (in *instance) run(b backend.Batch, marks *phases) {
	err := error(nil)
	if in.abandoned(b) {
		err = canceled()
	}
	if err == nil {
		err = in.gather(b.Requests())
	}
	marks.inputDone()
	if err == nil {
		err = in.infer(b)
	}
	if errs.Of(err) == errs.DeviceMemory && in.retry() {
		return
	}
	if len(in.left) == 0 {
		marks.inferDone()
	}
	if err == nil {
		err = in.collect(b.Requests())
	}
	if err != nil {
		in.fail(b, err)
		return
	}
	in.scatter(b)
}

// retry has the group run again: as smaller ones, and one by itself a few times, since runs of
// other instances give their memory back, and so does the session's arena at the end of each
// run until one does well. It reports false where that is to no avail.
func (in *instance) retry() bool {
	in.shrink(fmt.Sprintf("gpu:%d", in.model.gpu.ordinal))
	if in.room.failed(in.batchRows, len(in.group) > 1); in.room.failures > mostFailures {
		in.room.failures = 0
		return false
	}
	for k := range in.outputs {
		in.outputs[k].drop()
	}
	in.left = slices.Insert(in.left, 0, in.group...)
	return true
}

// shrink has the arenas of these names give their memory back at the end of each run; of none
// those that the model names.
func (in *instance) shrink(arenas string) {
	in.shrinking = arenas != ""
	if arenas == "" {
		arenas = shrinking(in.model.version.Config.Parameters[shrinkage], in.model.version.Device)
	}
	_ = in.call.configure(shrinkage, arenas) // there is such an arena
}

// infer runs the session.
func (in *instance) infer(b backend.Batch) error {
	for {
		err := in.runSession()
		if err == nil {
			in.room.ran()
			if in.shrinking {
				in.shrink("")
			}
			b.Executed()
			return nil
		}
		if !in.call.resume() {
			if in.model.gpu != nil {
				err = in.model.gpu.explain(err, in.batchRows, in.model.backend.options.DeviceFailed)
			}
			var known *errs.Error
			if errors.As(err, &known) {
				return known.WithModel(in.model.version.Ref.Name)
			}
			return errs.Wrap(errs.ExecutionFailed, err, "%v", err).WithModel(in.model.version.Ref.Name)
		}
		if in.abandoned(b) {
			return canceled()
		}
		// The stop was meant for the batch before and came late: run again.
	}
}

// runSession runs the session once, on the cores.
func (in *instance) runSession() error {
	switch {
	case !in.ran:
		return in.runFirst()
	case !in.model.cores.Empty():
		return in.runOnCores()
	}
	return in.call.run()
}

func (in *instance) runOnCores() (err error) {
	in.model.cores.Run(func() { err = in.call.run() })
	return err
}

// runFirst is the run in which an execution provider may begin what it has not begun yet.
func (in *instance) runFirst() (err error) {
	in.ran = true
	in.model.session.around(func() { err = in.runOnCores() })
	return err
}

// abandoned reports whether nobody waits for the group any more.
func (in *instance) abandoned(b backend.Batch) bool {
	for _, i := range in.group {
		if !b.Canceled(i) {
			return false
		}
	}
	return true
}

func canceled() error { return errs.New(errs.Canceled, "") }

// fail ends the group's requests with an error and drops its outputs.
func (in *instance) fail(b backend.Batch, err error) {
	for k := range in.outputs {
		in.outputs[k].drop()
	}
	for _, i := range in.group {
		b.Respond(i, &infer.Response{Final: true, Err: err})
	}
}

// phases marks the ends of a batch's phases once each, also when the batch
// takes several runs or none: the input phase ends before the first run, the
// infer phase after the last.
type phases struct {
	batch        backend.Batch
	input, infer bool
}

func (p *phases) inputDone() {
	if !p.input {
		p.input = true
		p.batch.InputDone()
	}
}

func (p *phases) inferDone() {
	if !p.infer {
		p.infer = true
		p.batch.InferDone()
	}
}

func (p *phases) finish() {
	p.inputDone()
	p.inferDone()
}

func grow(s []int32, n int) []int32 {
	if cap(s) < n {
		return make([]int32, n)
	}
	return s[:n]
}
