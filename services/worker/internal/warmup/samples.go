package warmup

import (
	"context"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// Samples are a version's samples with their values. They are immutable and
// can be run on several instances at the same time.
type Samples struct {
	model   infer.ModelRef
	samples []sample
}

type sample struct {
	name   string
	rows   int64
	count  uint32
	inputs []input
}

// input is one input of each of a sample's requests, over the same bytes.
type input struct {
	name     string
	datatype tensor.Datatype
	shape    tensor.Shape
	data     []byte
}

// Prepare makes the values of a version's samples. It reads the files that
// they name below the model's directory warmup, after it has looked at their
// sizes. Errors have the reason load_failed and name sample and input.
func Prepare(v backend.Version) (Samples, error) {
	all := Samples{model: v.Ref}
	v.Config = v.Config.ForBackend() // samples may have what the server gives, too
	for i := range v.Config.Warmup {
		s, err := prepare(v, &v.Config.Warmup[i])
		if err != nil {
			return Samples{}, err
		}
		all.samples = append(all.samples, s)
	}
	return all, nil
}

// maxBytes bounds what one execution of a sample gathers from its requests.
const maxBytes = 4 << 30

func prepare(v backend.Version, s *modelconfig.WarmupSample) (sample, error) {
	out := sample{name: s.Name, rows: s.BatchSize, count: s.Count}
	left := maxBytes / max(s.BatchSize, 1)
	for i := range s.Inputs {
		in := &s.Inputs[i]
		data, err := values(v, s.Name, in, left)
		if err != nil {
			return out, failed(v.Ref, s.Name, fmt.Sprintf("input '%s': %v", in.Name, err))
		}
		left -= int64(len(data))
		out.inputs = append(out.inputs, input{name: in.Name, datatype: in.Datatype, shape: shapeOf(v.Config, in), data: data})
	}
	return out, nil
}

// shapeOf is the shape that a request states: with one row where the model
// batches. Tensors that the model does not have are for its backend alone, and have none.
func shapeOf(c *modelconfig.Config, in *modelconfig.WarmupInput) tensor.Shape {
	if c.Batches() && c.Input(in.Name) != nil {
		return in.Dims.Prepend(1)
	}
	return in.Dims
}

// Run executes the samples on an instance that does nothing else meanwhile,
// which makes its calls through calls, and returns what they took, each as it ran last,
// or the first failure, of the reason load_failed. When ctx is done it cancels what runs, and stops the instance if that
// does not end then; where that cannot be, it waits.
func (s Samples) Run(ctx context.Context, in backend.Instance, calls infer.Caller) (took []infer.Cost, err error) {
	for i := range s.samples {
		cost := infer.Cost{Magnitude: s.samples[i].magnitude(), BatchSize: s.samples[i].rows}
		for range s.samples[i].count {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			begin := time.Now()
			failures := execute(ctx, in, s.samples[i].requests(s.model), calls)
			cost.Mean, cost.Executions = time.Since(begin), cost.Executions+1
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if len(failures) > 0 {
				// As in Triton, each failure ends with a semicolon. Requests that
				// fail alike, as those of one run do, are one.
				return nil, failed(s.model, s.samples[i].name, strings.Join(slices.Compact(failures), "; ")+";")
			}
		}
		if cost.Executions > 0 {
			took = append(took, cost)
		}
	}
	return took, nil
}

// magnitude is that of a row: see [infer.Cost].
func (s *sample) magnitude() uint8 {
	elements := uint64(0)
	for i := range s.inputs {
		if n, ok := s.inputs[i].shape.Elements(); ok {
			elements += uint64(n) //nolint:gosec // not negative
		}
	}
	return uint8(bits.Len64(elements)) //nolint:gosec // at most 64
}

func failed(model infer.ModelRef, sample, what string) *errs.Error {
	return errs.New(errs.LoadFailed, "failed to run warmup sample '%s': %s", sample, what).WithModel(model.Name)
}

func (s *sample) requests(model infer.ModelRef) []*infer.Request {
	list := make([]*infer.Request, s.rows)
	for i := range list {
		r := &infer.Request{Work: infer.Work{Request: infer.RequestID{Number: uint64(i)}}, Model: model, BatchSize: 1}
		for _, in := range s.inputs {
			r.Inputs = append(r.Inputs, infer.Tensor{Name: in.name, Datatype: in.datatype, Shape: in.shape, Data: tensor.InHeap(in.data)})
		}
		list[i] = r
	}
	return list
}
