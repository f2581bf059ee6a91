package codec

import (
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
)

// Submit writes a SubmitRequest. It fails when the deadline has passed: such a
// request is finished, not sent.
func (w *Writer) Submit(r *infer.Request, now mono.Time) error {
	left, bounded := r.Deadline.Left(now)
	if bounded && left <= 0 {
		return errs.New(errs.DeadlineQueue, "the deadline passed before the request could be sent to its scheduler").WithModel(r.Model.Name)
	}
	begun := w.begin(GatewaySubmit)
	w.descriptor(1, r, left)
	return w.end(begun)
}

// Cancel writes a CancelRequest.
func (w *Writer) Cancel(id infer.RequestID) error {
	begun := w.begin(GatewayCancel)
	w.work(&infer.Work{Request: id})
	return w.end(begun)
}

// descriptor writes a Descriptor. left is what is left of its deadline; 0 where
// it has none.
func (w *Writer) descriptor(num protowire.Number, r *infer.Request, left time.Duration) {
	w.entries(len(r.Inputs) + len(r.Outputs) + len(r.Parameters))
	if r.BatchSize < 0 {
		w.fail(errs.New(errs.TransferFailed, "a request of batch size %d cannot be sent to another process", r.BatchSize))
	}
	m := w.open(num)
	w.work(&r.Work)
	w.text(2, r.ID)
	w.model(3, &r.Model)
	w.number(4, uint64(r.BatchSize))
	for i := range r.Inputs {
		w.tensor(5, &r.Inputs[i])
	}
	for i := range r.Outputs {
		w.member(6, r.Outputs[i].Name)
	}
	for i := range r.Parameters {
		w.parameter(7, &r.Parameters[i])
	}
	if r.Sequence != (infer.Sequence{}) {
		w.sequence(8, &r.Sequence)
	}
	w.number(9, r.Priority)
	w.number(10, uint64(max(r.Timeout, 0)/time.Microsecond))
	w.number(11, nanoseconds(left))
	w.text(12, r.Tenant)
	w.text(13, r.CostClass)
	w.text(14, r.Trace)
	if r.Parent != (infer.Parent{}) {
		w.parent(15, &r.Parent)
	}
	w.bool(17, r.KeepOutputs)
	if r.Share != (infer.Share{}) {
		w.share(18, r.Share)
	}
	w.close(m)
}

func (w *Writer) share(num protowire.Number, v infer.Share) {
	m := w.open(num)
	w.number(1, uint64(v.Band))
	w.number(2, uint64(v.Minimum))
	w.number(3, uint64(v.Weight))
	w.close(m)
}

func (w *Writer) parent(num protowire.Number, p *infer.Parent) {
	m := w.open(num)
	u := p.Unit
	w.work(&infer.Work{Request: u.Request, Step: u.Step, Iteration: u.Iteration, Attempt: u.Attempt})
	w.number(2, p.Batch.Number)
	w.number(3, p.Batch.Epoch)
	w.bool(4, p.Alone)
	w.close(m)
}

func (w *Writer) sequence(num protowire.Number, v *infer.Sequence) {
	m := w.open(num)
	w.number(1, v.ID)
	w.text(2, v.Key)
	w.bool(3, v.Start)
	w.bool(4, v.End)
	w.close(m)
}

// Submit reads a SubmitRequest that came at now. The request is the caller's.
func (r *Reader) Submit(b Body, now mono.Time) (*infer.Request, error) {
	s := r.begin(b)
	d := newRequest()
	for s.next() {
		if s.field == text(1) {
			s.descriptor(d)
		} else {
			s.skip()
		}
	}
	request := d.made(now)
	if err := r.end(); err != nil {
		request.Release()
		return nil, err
	}
	return request, nil
}

// Cancel reads a CancelRequest.
func (r *Reader) Cancel(b Body) (infer.RequestID, error) {
	var w infer.Work
	s := r.begin(b)
	for s.next() {
		if s.field == text(1) {
			s.work(&w)
		} else {
			s.skip()
		}
	}
	return w.Request, r.end()
}

const (
	inputsGuess = 2
	dimsGuess   = 8
)

// request is a request that is being read, with room for what most have.
type request struct {
	infer.Request
	budget uint64 // of the deadline; 0 is none
	dims   []int64

	inputs   [inputsGuess]infer.Tensor
	dimsRoom [dimsGuess]int64
}

func newRequest() *request {
	d := new(request)
	d.Inputs, d.dims = d.inputs[:0], d.dimsRoom[:0]
	return d
}

// made is the request when all of it has been read.
func (d *request) made(now mono.Time) *infer.Request {
	d.Received = now
	if d.budget > 0 {
		d.Deadline = after(now, d.budget)
	}
	if len(d.Inputs) == 0 {
		d.Inputs = nil
	}
	return &d.Request
}

// descriptor reads a Descriptor.
func (s *scan) descriptor(d *request) {
	m := s.message()
	for m.next() {
		switch m.field {
		case text(1):
			m.work(&d.Work)
		case text(2):
			d.ID = m.string()
		case text(3):
			m.model(&d.Model)
		case varint(4):
			d.BatchSize = int64(m.number())
		case text(5):
			m.tensor(&d.Inputs, &d.dims)
		case text(6):
			s.rd.entry()
			d.Outputs = append(d.Outputs, infer.Output{Name: m.name()})
		case text(7):
			m.parameter(&d.Parameters)
		case text(8):
			m.sequence(&d.Sequence)
		default:
			m.policy(d)
		}
	}
	if d.BatchSize < 0 {
		s.rd.fail(malformed("a request has the batch size %d", d.BatchSize))
	}
}

// policy reads the fields of a Descriptor by which the scheduler decides.
func (s *scan) policy(d *request) {
	switch s.field {
	case varint(9):
		d.Priority = s.number()
	case varint(10):
		d.Timeout = time.Duration(min(s.number(), math.MaxInt64/uint64(time.Microsecond))) * time.Microsecond
	case varint(11):
		d.budget = s.number()
	case text(12):
		d.Tenant = s.name()
	case text(13):
		d.CostClass = s.name()
	case text(14):
		d.Trace = s.string()
	case text(15):
		s.parent(&d.Parent)
	case varint(17):
		d.KeepOutputs = s.bool()
	case text(18):
		s.share(&d.Share)
	default:
		s.skip()
	}
}

func (s *scan) share(v *infer.Share) {
	m := s.message()
	for m.next() {
		switch m.field {
		case varint(1):
			v.Band = uint32(m.number())
		case varint(2):
			v.Minimum = uint32(m.number())
		case varint(3):
			v.Weight = uint32(m.number())
		default:
			m.skip()
		}
	}
}

func (s *scan) parent(p *infer.Parent) {
	m := s.message()
	for m.next() {
		switch m.field {
		case text(1):
			unit := infer.Work{Request: p.Unit.Request, Step: p.Unit.Step, Iteration: p.Unit.Iteration, Attempt: p.Unit.Attempt}
			m.work(&unit)
			p.Unit = unit.Unit()
		case varint(2):
			p.Batch.Number = m.number()
		case varint(3):
			p.Batch.Epoch = m.number()
		case varint(4):
			p.Alone = m.bool()
		default:
			m.skip()
		}
	}
}

func (s *scan) sequence(v *infer.Sequence) {
	m := s.message()
	for m.next() {
		switch m.field {
		case varint(1):
			v.ID = m.number()
		case text(2):
			v.Key = m.string()
		case varint(3):
			v.Start = m.bool()
		case varint(4):
			v.End = m.bool()
		default:
			m.skip()
		}
	}
}
