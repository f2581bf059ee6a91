// Package echo is a backend whose models return their inputs: the output of each
// position is the input of that position, over the same memory. The control inputs
// of sequences come after the inputs in the configuration. A state stays
// unchanged. Parameters of the model's configuration set the time of a batch in
// microseconds, so that the backend can replace a real model in tests, simulation
// and measurements of everything else:
//
//	execute_us          for each batch
//	execute_us_per_row  for each of its rows, in addition
//
// The parameter memory_bytes makes each instance allocate that much memory. The
// parameter responses sets how many responses a decoupled model gives to each
// request, the last of which ends it; with 0 the request ends without a response.
// Several responses come from a goroutine per request, while the instance accepts
// the next batch.
//
// The parameter calls names a model that is called with the inputs of each request before
// its first response. An output that the called model gives under the same name replaces
// the input; if the called model responds several times, the last one counts. A request
// whose call fails, fails with the same error. With several responses, the instance is
// free before it calls.
//
// The parameter iterations sets how often a model with iterative_sequence runs each
// request. A decoupled model responds in each iteration, and does not wait for its client.
//
// With the prefix gpu., such as gpu.execute_us, parameters apply to instances on GPUs and
// simulate devices of different speed.
package echo

import (
	"context"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/builtin"
)

// Backend is the echo backend. The zero value is ready for use and sleeps
// with [Sleep].
type Backend struct {
	// Sleep waits for d or until stop can be received from. It is called
	// from one goroutine per instance.
	Sleep func(d time.Duration, stop <-chan struct{})
}

// Close does nothing.
func (b *Backend) Close() error { return nil }

// Load checks that outputs can be inputs. It reads no files.
func (b *Backend) Load(_ context.Context, v backend.Version) (backend.Model, error) {
	m := &model{config: v.Config, sleep: b.Sleep, calls: v.Config.Parameters["calls"]}
	if m.sleep == nil {
		m.sleep = Sleep
	}
	for i := range v.Config.Outputs {
		if err := match(v.Config, i); err != nil {
			return nil, err
		}
		m.sources = append(m.sources, inputOf(v.Config, i).Name)
	}
	var err error
	if m.pace, err = paceOf(v.Config, "", pace{}); err != nil {
		return nil, err
	}
	if m.gpu, err = paceOf(v.Config, "gpu.", m.pace); err != nil {
		return nil, err
	}
	if m.memory, err = memoryOf(v.Config); err != nil {
		return nil, err
	}
	if m.responses, err = responsesOf(v.Config); err != nil {
		return nil, err
	}
	m.iterations, err = iterationsOf(v.Config)
	return m, err
}

// pace is how long a batch takes, and each of its rows in addition.
type pace struct{ batch, row time.Duration }

// paceOf reads the parameters with a prefix; standard holds without them.
func paceOf(c *modelconfig.Config, prefix string, standard pace) (p pace, err error) {
	if p.batch, err = micros(c, prefix+"execute_us", standard.batch); err != nil {
		return p, err
	}
	p.row, err = micros(c, prefix+"execute_us_per_row", standard.row)
	return p, err
}

func match(c *modelconfig.Config, i int) error {
	out := &c.Outputs[i]
	in := inputOf(c, i)
	if in == nil {
		return builtin.LoadFailed(c, "output '%s' has no input in its position: declare as many inputs as outputs", out.Name)
	}
	if in.Datatype != out.Datatype || !in.Dims.Equal(out.Dims) {
		return builtin.LoadFailed(c, "output '%s' is %v%v, but input '%s' in its position is %v%v: declare them alike",
			out.Name, out.Datatype, out.Dims, in.Name, in.Datatype, in.Dims)
	}
	return nil
}

// inputOf is the input that output i answers with, or nil.
func inputOf(c *modelconfig.Config, i int) *modelconfig.IO {
	if c.Sequences != nil {
		for _, s := range c.Sequences.States {
			if s.Output == c.Outputs[i].Name {
				return c.Input(s.Input)
			}
		}
	}
	if i >= len(c.Inputs) {
		return nil
	}
	return &c.Inputs[i]
}

// micros reads a parameter.
func micros(c *modelconfig.Config, key string, standard time.Duration) (time.Duration, error) {
	text, ok := c.Parameters[key]
	if !ok {
		return standard, nil
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, builtin.LoadFailed(c, "parameter %s is %q: give whole microseconds, at most 4294967295", key, text)
	}
	return time.Duration(n) * time.Microsecond, nil
}

// maxMemory is the most memory of an instance, in bytes.
const maxMemory = 1 << 32

func memoryOf(c *modelconfig.Config) (int64, error) {
	text, ok := c.Parameters["memory_bytes"]
	if !ok {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > maxMemory {
		return 0, builtin.LoadFailed(c, "parameter memory_bytes is %q: give whole bytes, at most %d", text, int64(maxMemory))
	}
	return n, nil
}

// maxResponses is the most responses to a request.
const maxResponses = 1 << 20

func responsesOf(c *modelconfig.Config) (int, error) {
	text, ok := c.Parameters["responses"]
	if !ok {
		return 1, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > maxResponses {
		return 0, builtin.LoadFailed(c, "parameter responses is %q: give a whole number, at most %d", text, maxResponses)
	}
	if n != 1 && !c.Decoupled {
		return 0, builtin.LoadFailed(c, "parameter responses is %d: a model that is not decoupled gives one", n)
	}
	return n, nil
}

// maxIterations is the most iterations of a request.
const maxIterations = 1 << 20

func iterationsOf(c *modelconfig.Config) (uint32, error) {
	text, ok := c.Parameters["iterations"]
	if !ok {
		return 1, nil
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n < 1 || n > maxIterations {
		return 0, builtin.LoadFailed(c, "parameter iterations is %q: give a whole number from 1 to %d", text, maxIterations)
	}
	if n > 1 && (c.Sequences == nil || !c.Sequences.Iterative) {
		return 0, builtin.LoadFailed(c, "parameter iterations is %d: a model without sequence_batching { iterative_sequence: true } runs a request once", n)
	}
	if _, several := c.Parameters["responses"]; n > 1 && several {
		return 0, builtin.LoadFailed(c, "parameter responses cannot be given with iterations: each of these gives one response, where the model is decoupled")
	}
	return uint32(n), nil
}

type model struct {
	config    *modelconfig.Config
	pace, gpu pace
	sources   []string // the inputs that the outputs answer with
	memory    int64    // of an instance, in bytes
	responses int      // to each request
	calls     string   // the model that is called; empty for none
	// iterations is how often each request runs.
	iterations uint32
	sleep      func(time.Duration, <-chan struct{})
}

// NewInstance makes an instance, on whatever device is asked for.
func (m *model) NewInstance(_ context.Context, spec backend.InstanceSpec) (backend.Instance, error) {
	in := &instance{model: m, pace: m.pace, stop: make(chan struct{}, 1), memory: make([]byte, m.memory)}
	for i := 0; i < len(in.memory); i += os.Getpagesize() {
		in.memory[i] = 1 // else the system gives it no page
	}
	if spec.Kind == modelconfig.KindGPU {
		in.pace = m.gpu
	}
	in.onCancel = func() { signal(in.stop) }
	return in, nil
}

// signal fills a channel that has room for one.
func signal(stop chan<- struct{}) {
	select {
	case stop <- struct{}{}:
	default:
	}
}

// Close does nothing.
func (m *model) Close() error { return nil }

type instance struct {
	model    *model
	pace     pace
	stop     chan struct{} // holds a signal once the batch is canceled
	onCancel func()
	memory   []byte
}

// Credits is 1.
func (in *instance) Credits() int { return 1 }

// Close gives up the instance's memory.
func (in *instance) Close() error {
	in.memory = nil
	return nil
}

// Execute waits for as long as the model takes and answers.
func (in *instance) Execute(b backend.Batch) {
	select {
	case <-in.stop: // meant for the batch before
	default:
	}
	stop, onCancel := in.stop, in.onCancel
	if in.model.responses > 1 { // the batch outlives its turn: its cancellation is not to meet the next
		stop = make(chan struct{}, 1)
		onCancel = func() { signal(stop) }
	}
	b.OnCancel(onCancel)
	b.InputDone()
	if d := in.pace.batch + time.Duration(b.BatchSize())*in.pace.row; d > 0 {
		in.model.sleep(d, stop)
	}
	if !abandoned(b) {
		b.Executed()
	}
	if in.model.responses > 1 {
		b.InferDone()
		in.model.respondAll(b)
		return
	}
	in.model.respondOnce(b)
	b.Done()
}

// respondOnce gives each request its one response, or that of an iteration. All calls
// are under way at once.
func (m *model) respondOnce(b backend.Batch) {
	calls := make([]func() called, len(b.Requests()))
	for i, r := range b.Requests() {
		calls[i] = m.call(b, backend.AllRequests, r)
	}
	results := make([]called, len(calls))
	for i, wait := range calls {
		results[i] = wait()
	}
	b.InferDone()
	for i, r := range b.Requests() {
		result := &results[i]
		last := r.Work.Iteration+1 >= m.iterations
		response := &infer.Response{Final: last, Err: result.err}
		switch {
		case b.Canceled(i):
			response.Err = errs.New(errs.Canceled, "")
		case result.err == nil && m.responses > 0:
			response.Outputs = m.outputs(r, result)
		}
		if last || m.config.Decoupled || response.Err != nil {
			b.Respond(i, response)
		} else {
			response.Release()
		}
		if !last {
			b.Again(i)
		}
		result.release()
	}
}

// respondAll gives each request its responses, as its client reads them, and ends
// the batch with the last of all.
func (m *model) respondAll(b backend.Batch) {
	var responding sync.WaitGroup
	for i, r := range b.Requests() {
		responding.Go(func() { m.respond(b, i, r) })
	}
	b.Free()
	go func() {
		responding.Wait()
		b.Done()
	}()
}

// respond gives request i several responses.
func (m *model) respond(b backend.Batch, i int, r *infer.Request) {
	result := m.call(b, i, r)()
	defer result.release()
	if result.err != nil {
		b.Respond(i, &infer.Response{Err: result.err})
		return
	}
	for range m.responses - 1 {
		<-b.Room(i)
		if b.Canceled(i) {
			b.Respond(i, &infer.Response{Err: errs.New(errs.Canceled, "")})
			return
		}
		b.Respond(i, &infer.Response{Outputs: m.outputs(r, &result)})
	}
	b.Respond(i, &infer.Response{Final: true, Outputs: m.outputs(r, &result)})
}

// abandoned reports whether the run was stopped because nobody waited.
func abandoned(b backend.Batch) bool {
	for i := range b.Requests() {
		if !b.Canceled(i) {
			return false
		}
	}
	return true
}

// outputs are what a call has given or the request's inputs, under the outputs' names, as
// far as they are asked for and were given.
func (m *model) outputs(r *infer.Request, result *called) []infer.Tensor {
	list := make([]infer.Tensor, 0, len(m.config.Outputs))
	for i := range m.config.Outputs {
		out := &m.config.Outputs[i]
		in := result.find(out.Name)
		if in == nil {
			in = find(r, m.sources[i])
		}
		if in == nil || !r.Wants(out.Name) {
			continue
		}
		list = append(list, infer.Tensor{Name: out.Name, Datatype: in.Datatype, Shape: in.Shape, Data: in.Data.Retain()})
	}
	return list
}

func find(r *infer.Request, name string) *infer.Tensor {
	for i := range r.Inputs {
		if r.Inputs[i].Name == name {
			return &r.Inputs[i]
		}
	}
	return nil
}
