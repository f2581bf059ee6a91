// Package identity is a backend whose models return their inputs, like Triton's
// identity backend: the output OUTPUT<index> is the input INPUT<index>, of any
// datatype and shape, over the same memory. An omitted optional input gives zeros in
// the configured shape, with 1 for -1. It needs no files.
//
// Parameters of the configuration delay it:
//
//	execute_delay_ms                for each batch
//	instance_wise_delay_multiplier  multiplies that delay by the instance's number, for
//	                                the instance 0 by one
//	creation_delay_sec              for each load
//
// Each response has the parameters param0, param1 and param2: a string, an integer
// and a boolean.
package identity

import (
	"context"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/builtin"
	"github.com/nereid-serving/nereid/services/worker/internal/datafile"
)

// Backend is the identity backend.
type Backend struct {
	pool *tensor.Pool // of outputs whose inputs are left out
}

// Close does nothing.
func (*Backend) Close() error { return nil }

// Load checks the configuration, and takes as long as it says. It reads no files.
func (b *Backend) Load(ctx context.Context, v backend.Version) (backend.Model, error) {
	m := &model{pool: b.pool, batches: v.Config.Batches()}
	var err error
	if m.pairs, err = pairsOf(v.Config); err != nil {
		return nil, err
	}
	if m.delay, err = builtin.Duration(v.Config, "execute_delay_ms", time.Millisecond); err != nil {
		return nil, err
	}
	if m.multiplier, err = builtin.Count(v.Config, "instance_wise_delay_multiplier"); err != nil {
		return nil, err
	}
	creation, err := builtin.Duration(v.Config, "creation_delay_sec", time.Second)
	if err != nil {
		return nil, err
	}
	builtin.Pause(creation, ctx.Done())
	return m, ctx.Err()
}

// pair is an output and the input that it answers with.
type pair struct {
	output string
	input  *modelconfig.IO
	zeros  tensor.Shape // of a row of an optional input that is left out
}

// maxZeros is the most that a batch of inputs that are left out may take, in bytes.
const maxZeros = 1 << 30

// pairsOf finds the input of each output. The controls of sequences answer nothing.
func pairsOf(c *modelconfig.Config) ([]pair, error) {
	inputs := make(map[string]*modelconfig.IO)
	for i := range c.Inputs {
		in := &c.Inputs[i]
		if c.Sequences.Control(in.Name) != nil {
			continue
		}
		index, ok := strings.CutPrefix(in.Name, "INPUT")
		if !ok {
			return nil, builtin.LoadFailed(c, "expected input name to follow INPUT<index> pattern, got '%s'", in.Name)
		}
		inputs[index] = in
	}
	if len(inputs) != len(c.Outputs) {
		return nil, builtin.LoadFailed(c, "model configuration must have equal input/output pairs")
	}
	pairs := make([]pair, 0, len(c.Outputs))
	for i := range c.Outputs {
		out := &c.Outputs[i]
		index, ok := strings.CutPrefix(out.Name, "OUTPUT")
		in := inputs[index]
		switch {
		case !ok:
			return nil, builtin.LoadFailed(c, "expected output name to follow OUTPUT<index> pattern, got '%s'", out.Name)
		case in == nil:
			return nil, builtin.LoadFailed(c, "expected input and output indices to match: there is no input INPUT%s", index)
		case in.Datatype != out.Datatype:
			return nil, builtin.LoadFailed(c, "expected input and output datatype to match, got %s and %s", in.Datatype.ConfigName(), out.Datatype.ConfigName())
		case !in.Dims.Equal(out.Dims):
			return nil, builtin.LoadFailed(c, "expected input and output shape to match, got %v and %v", in.Dims, out.Dims)
		}
		zeros := make(tensor.Shape, len(in.Dims))
		for i, d := range in.Dims {
			zeros[i] = max(d, 1)
		}
		size, err := datafile.Size(in.Datatype, zeros.Prepend(max(c.MaxBatchSize, 1)))
		if in.Optional && (err != nil || size > maxZeros) {
			return nil, builtin.LoadFailed(c, "zeros for the optional input '%s' are more than %d bytes: give it smaller dims", in.Name, maxZeros)
		}
		pairs = append(pairs, pair{out.Name, in, zeros})
	}
	return pairs, nil
}

type model struct {
	pool       *tensor.Pool
	batches    bool
	pairs      []pair
	delay      time.Duration
	multiplier uint32
	made       atomic.Int64 // instances so far
}

// NewInstance makes an instance, which is numbered.
func (m *model) NewInstance(context.Context, backend.InstanceSpec) (backend.Instance, error) {
	in := &instance{model: m, delay: m.delay}
	if number := m.made.Add(1) - 1; m.multiplier > 0 && number > 0 {
		in.delay *= time.Duration(min(int64(m.multiplier)*number, math.MaxInt64/max(int64(m.delay), 1)))
	}
	return in, nil
}

// Close does nothing.
func (m *model) Close() error { return nil }

type instance struct {
	model *model
	delay time.Duration
}

// Credits is 1.
func (*instance) Credits() int { return 1 }

// Close does nothing.
func (*instance) Close() error { return nil }

// Execute waits for as long as the instance takes, and answers.
func (in *instance) Execute(b backend.Batch) {
	b.InputDone()
	builtin.Pause(in.delay, builtin.Canceled(b))
	b.Executed()
	b.InferDone()
	for i, r := range b.Requests() {
		response := &infer.Response{Final: true}
		if b.Canceled(i) {
			response.Err = errs.New(errs.Canceled, "")
		} else {
			in.model.fill(response, r)
		}
		b.Respond(i, response)
	}
	b.Done()
}

// fill gives a response what the request asks for.
func (m *model) fill(response *infer.Response, r *infer.Request) {
	response.Parameters = []infer.Parameter{
		{Key: "param0", Value: "an example string parameter"}, {Key: "param1", Value: int64(42)}, {Key: "param2", Value: false},
	}
	for _, p := range m.pairs {
		if !r.Wants(p.output) {
			continue
		}
		out, err := m.output(p, r)
		if err != nil {
			response.Release()
			*response = infer.Response{Final: true, Err: err}
			return
		}
		response.Outputs = append(response.Outputs, out)
	}
}

// output is the input of a pair, or zeros where the request does without.
func (m *model) output(p pair, r *infer.Request) (infer.Tensor, error) {
	for i := range r.Inputs {
		if in := &r.Inputs[i]; in.Name == p.input.Name {
			return infer.Tensor{Name: p.output, Datatype: in.Datatype, Shape: in.Shape, Data: in.Data.Retain()}, nil
		}
	}
	shape := p.zeros
	if m.batches {
		shape = shape.Prepend(r.BatchSize)
	}
	size, err := datafile.Size(p.input.Datatype, shape)
	if err != nil {
		return infer.Tensor{}, err
	}
	buffer, err := m.pool.Get(int(size))
	if err != nil {
		return infer.Tensor{}, err
	}
	clear(buffer.Bytes())
	return infer.Tensor{Name: p.output, Datatype: p.input.Datatype, Shape: shape, Data: tensor.InBuffer(buffer, 0, size)}, nil
}
