package codec

import (
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Call writes a Call. A deadline that has passed crosses as the shortest one that is
// left, since it is the gateway that ends the call.
func (w *Writer) Call(number uint64, c *infer.Call, now mono.Time) error {
	left, bounded := c.Deadline.Left(now)
	if bounded {
		left = max(left, 1)
	}
	begun := w.begin(ExchangeCall)
	w.number(1, number)
	w.text(2, c.Version)
	w.bool(3, c.Single)
	w.descriptor(4, &infer.Request{
		ID: c.ID, Model: infer.ModelRef{Name: c.Model}, Inputs: c.Inputs, Outputs: c.Outputs, Parameters: c.Parameters, Sequence: c.Sequence,
		Priority: c.Priority, Timeout: c.Timeout, Tenant: c.Tenant, CostClass: c.CostClass, Share: c.Share, Trace: c.Trace, Parent: c.Parent,
	}, left)
	return w.end(begun)
}

// Call reads a Call that came at now. The call is the caller's.
func (r *Reader) Call(b Body, now mono.Time) (number uint64, c *infer.Call, err error) {
	s := r.begin(b)
	c = new(infer.Call)
	d := newRequest()
	for s.next() {
		switch s.field {
		case varint(1):
			number = s.number()
		case text(2):
			c.Version = s.name()
		case varint(3):
			c.Single = s.bool()
		case text(4):
			s.descriptor(d)
		default:
			s.skip()
		}
	}
	q := d.made(now)
	if err := r.end(); err != nil {
		q.Release()
		return 0, nil, err
	}
	c.Model, c.ID, c.Inputs, c.Outputs, c.Parameters, c.Sequence = q.Model.Name, q.ID, q.Inputs, q.Outputs, q.Parameters, q.Sequence
	c.Priority, c.Timeout, c.Deadline = q.Priority, q.Timeout, q.Deadline
	c.Tenant, c.CostClass, c.Share, c.Trace, c.Parent = q.Tenant, q.CostClass, q.Share, q.Trace, q.Parent
	return number, c, nil
}

// CallResponse writes a CallResponse. The response stays the caller's.
func (w *Writer) CallResponse(number uint64, p *infer.Response) error {
	begun := w.begin(ExchangeCallResponse)
	w.number(1, number)
	m := w.open(2)
	w.response(p)
	w.close(m)
	return w.end(begun)
}

// CallResponse reads a CallResponse. The response is the caller's.
func (r *Reader) CallResponse(b Body) (number uint64, p *infer.Response, err error) {
	s := r.begin(b)
	p = new(infer.Response)
	for s.next() {
		switch s.field {
		case varint(1):
			number = s.number()
		case text(2):
			m := s.message()
			m.response(p)
		default:
			s.skip()
		}
	}
	if err := r.end(); err != nil {
		p.Release()
		return 0, nil, err
	}
	endWithError(p)
	return number, p, nil
}

// CallCancel writes a CallCancel.
func (w *Writer) CallCancel(number uint64) error {
	begun := w.begin(ExchangeCallCancel)
	w.number(1, number)
	return w.end(begun)
}

// CallCancel reads a CallCancel.
func (r *Reader) CallCancel(b Body) (number uint64, err error) {
	number, _, err = r.CallTaken(b)
	return number, err
}

// CallTaken writes a CallTaken.
func (w *Writer) CallTaken(number uint64, responses uint32) error {
	begun := w.begin(ExchangeCallTaken)
	w.number(1, number)
	w.number(2, uint64(responses))
	return w.end(begun)
}

// CallTaken reads a CallTaken.
func (r *Reader) CallTaken(b Body) (number uint64, responses uint32, err error) {
	s := r.begin(b)
	for s.next() {
		switch s.field {
		case varint(1):
			number = s.number()
		case varint(2):
			responses = uint32(s.number())
		default:
			s.skip()
		}
	}
	return number, responses, r.end()
}

// Control is what a model asks of other models: see [infer.Control].
type Control struct {
	Action                 nereidv1.ControlAction
	Model, Version, Config string
	Files                  []infer.Tensor // by the names of their paths
	Dependents             bool
}

// Control writes a Control.
func (w *Writer) Control(number uint64, c *Control) error {
	begun := w.begin(ExchangeControl)
	w.number(1, number)
	w.number(2, uint64(c.Action))
	w.text(3, c.Model)
	w.text(4, c.Version)
	w.text(5, c.Config)
	for i := range c.Files {
		w.tensor(6, &c.Files[i])
	}
	w.bool(7, c.Dependents)
	return w.end(begun)
}

// Control reads a Control. The files are the caller's.
func (r *Reader) Control(b Body) (number uint64, c *Control, err error) {
	s := r.begin(b)
	c = new(Control)
	var dims []int64
	for s.next() {
		switch s.field {
		case varint(1):
			number = s.number()
		case varint(2):
			c.Action = nereidv1.ControlAction(s.number())
		case text(3):
			c.Model = s.name()
		case text(4):
			c.Version = s.name()
		case text(5):
			c.Config = s.string()
		case text(6):
			s.tensor(&c.Files, &dims)
		case varint(7):
			c.Dependents = s.bool()
		default:
			s.skip()
		}
	}
	if err := r.end(); err != nil {
		c.Release()
		return 0, nil, err
	}
	return number, c, nil
}

// Release gives up the files.
func (c *Control) Release() {
	for i := range c.Files {
		c.Files[i].Data.Release()
	}
}

// ControlDone writes a ControlDone; a nil error is none.
func (w *Writer) ControlDone(number uint64, ready bool, failure error) error {
	begun := w.begin(ExchangeControlDone)
	w.number(1, number)
	w.bool(2, ready)
	if failure != nil {
		w.error(3, failure)
	}
	return w.end(begun)
}

// ControlDone reads a ControlDone.
func (r *Reader) ControlDone(b Body) (number uint64, ready bool, failure, err error) {
	s := r.begin(b)
	for s.next() {
		switch s.field {
		case varint(1):
			number = s.number()
		case varint(2):
			ready = s.bool()
		case text(3):
			s.error(&failure)
		default:
			s.skip()
		}
	}
	return number, ready, failure, r.end()
}
