package echo

import (
	"slices"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// called is what has come of a call.
type called struct {
	outputs []infer.Tensor // of the last response that had some
	err     error
}

// call calls the model that the configuration names with the inputs of a request, and
// returns what waits for the end of the call.
func (m *model) call(b backend.Batch, parent int, r *infer.Request) (wait func() called) {
	if m.calls == "" {
		return func() called { return called{} }
	}
	ended := make(chan called, 1)
	var result called // of the call's goroutine
	b.Call(parent, m.callOf(r), func(p *infer.Response) {
		if p.Err != nil {
			result.release()
			result = called{err: p.Err}
		} else if len(p.Outputs) > 0 {
			result.release()
			for _, out := range p.Outputs {
				out.Data = out.Data.Retain()
				result.outputs = append(result.outputs, out)
			}
		}
		final := p.Final
		p.Release()
		if final {
			ended <- result
		}
	})
	return func() called { return <-ended }
}

// callOf passes a request on.
func (m *model) callOf(r *infer.Request) *infer.Call {
	c := &infer.Call{
		Model: m.calls, ID: r.ID, Inputs: slices.Clone(r.Inputs), Parameters: r.Parameters, Sequence: r.Sequence, Priority: r.Priority,
		Timeout: r.Timeout, Trace: r.Trace,
	}
	for i := range c.Inputs {
		c.Inputs[i].Data = c.Inputs[i].Data.Retain()
	}
	return c
}

// find returns an output; nil if the model that was called has not given it.
func (c *called) find(name string) *infer.Tensor {
	for i := range c.outputs {
		if c.outputs[i].Name == name {
			return &c.outputs[i]
		}
	}
	return nil
}

func (c *called) release() {
	for i := range c.outputs {
		c.outputs[i].Data.Release()
	}
	c.outputs = nil
}
