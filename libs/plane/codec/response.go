package codec

import (
	"errors"
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// Response writes a Response, as the member of its stream's messages that the
// field is. The response stays the caller's.
func (w *Writer) Response(member protowire.Number, r *infer.Response) error {
	begun := w.begin(member)
	w.response(r)
	return w.end(begun)
}

func (w *Writer) response(r *infer.Response) {
	w.entries(len(r.Outputs) + len(r.Parameters))
	w.work(&r.Work)
	w.number(2, uint64(r.Index))
	w.bool(3, r.Final)
	for i := range r.Outputs {
		w.tensor(4, &r.Outputs[i])
	}
	for i := range r.Parameters {
		w.parameter(5, &r.Parameters[i])
	}
	if r.Err != nil {
		w.error(6, r.Err)
	}
	w.bool(7, r.Immediate)
	w.bool(8, r.Returned != nil)
	w.bool(9, r.Awaited)
	w.number(10, r.Kept)
	if r.Execution != (infer.Execution{}) {
		w.execution(11, &r.Execution)
	}
}

func (w *Writer) execution(num protowire.Number, x *infer.Execution) {
	m := w.open(num)
	w.number(1, x.Batch.Number)
	w.number(2, x.Batch.Epoch)
	w.number(3, x.Instance.Worker)
	w.number(4, uint64(x.Instance.Slot))
	w.number(5, uint64(max(x.BatchSize, 0)))
	w.number(6, nanoseconds(x.Waited))
	w.number(7, nanoseconds(x.Input))
	w.number(8, nanoseconds(x.Ran))
	w.number(9, nanoseconds(x.Cost))
	w.number(10, nanoseconds(x.Output))
	w.close(m)
}

// Refused writes a Refused.
func (w *Writer) Refused(work infer.Work, err error) error {
	begun := w.begin(SchedulerRefused)
	w.work(&work)
	w.error(2, err)
	return w.end(begun)
}

// Credit writes a Credit.
func (w *Writer) Credit(member protowire.Number, c Credit) error {
	begun := w.begin(member)
	w.number(1, uint64(c.Messages))
	w.number(2, c.Bytes)
	return w.end(begun)
}

// Placed says on which worker a request will run.
func (w *Writer) Placed(work infer.Work, worker uint64) error {
	begun := w.begin(SchedulerPlaced)
	w.work(&work)
	w.number(2, worker)
	return w.end(begun)
}

// error writes an Error. Texts that are not valid UTF-8, as a model may give
// them, are made so.
func (w *Writer) error(num protowire.Number, err error) {
	e := errs.From(err)
	m := w.open(num)
	w.valid(1, string(e.Reason))
	w.valid(2, e.Msg)
	w.valid(3, e.Model)
	w.number(4, nanoseconds(e.RetryAfter))
	w.valid(5, e.Op)
	if e.Err != nil {
		w.valid(6, e.Err.Error())
	}
	w.close(m)
}

// Credit allows a peer to send more.
type Credit struct {
	Messages uint32
	Bytes    uint64
}

// Response reads a Response, which is the caller's, and says whether it gives
// the request back.
func (r *Reader) Response(b Body) (response *infer.Response, returned bool, err error) {
	s := r.begin(b)
	response = new(infer.Response)
	returned = s.response(response)
	if err := r.end(); err != nil {
		response.Release()
		return nil, false, err
	}
	endWithError(response)
	return response, returned, nil
}

// endWithError makes a response that fails its request the last, without outputs.
func endWithError(p *infer.Response) {
	if p.Err != nil {
		p.Release()
		p.Final, p.Outputs = true, nil
	}
}

func (s *scan) response(p *infer.Response) (returned bool) {
	var dims []int64
	for s.next() {
		switch s.field {
		case text(1):
			s.work(&p.Work)
		case varint(2):
			p.Index = uint32(s.number())
		case varint(3):
			p.Final = s.bool()
		case text(4):
			s.tensor(&p.Outputs, &dims)
		case text(5):
			s.parameter(&p.Parameters)
		case text(6):
			s.error(&p.Err)
		case varint(7):
			p.Immediate = s.bool()
		case varint(8):
			returned = s.bool()
		case varint(9):
			p.Awaited = s.bool()
		case varint(10):
			p.Kept = s.number()
		case text(11):
			s.execution(&p.Execution)
		default:
			s.skip()
		}
	}
	return returned
}

func (s *scan) execution(x *infer.Execution) {
	m := s.message()
	for m.next() {
		switch m.field {
		case varint(1):
			x.Batch.Number = m.number()
		case varint(2):
			x.Batch.Epoch = m.number()
		case varint(3):
			x.Instance.Worker = m.number()
		case varint(4):
			x.Instance.Slot = uint32(m.number())
		case varint(5):
			x.BatchSize = int64(min(m.number(), math.MaxInt64))
		case varint(6):
			x.Waited = duration(m.number())
		case varint(7):
			x.Input = duration(m.number())
		case varint(8):
			x.Ran = duration(m.number())
		case varint(9):
			x.Cost = duration(m.number())
		case varint(10):
			x.Output = duration(m.number())
		default:
			m.skip()
		}
	}
}

// Refused reads a Refused.
func (r *Reader) Refused(b Body) (w infer.Work, refusal, err error) {
	s := r.begin(b)
	for s.next() {
		switch s.field {
		case text(1):
			s.work(&w)
		case text(2):
			s.error(&refusal)
		default:
			s.skip()
		}
	}
	if refusal == nil {
		r.fail(malformed("a refusal has no error"))
	}
	return w, refusal, r.end()
}

// Credit reads a Credit.
func (r *Reader) Credit(b Body) (c Credit, err error) {
	s := r.begin(b)
	for s.next() {
		switch s.field {
		case varint(1):
			c.Messages = uint32(s.number())
		case varint(2):
			c.Bytes = s.number()
		default:
			s.skip()
		}
	}
	return c, r.end()
}

// Placed reads what [Writer.Placed] wrote.
func (r *Reader) Placed(b Body) (w infer.Work, worker uint64, err error) {
	s := r.begin(b)
	for s.next() {
		switch s.field {
		case text(1):
			s.work(&w)
		case varint(2):
			worker = s.number()
		default:
			s.skip()
		}
	}
	return w, worker, r.end()
}

// error reads an Error, which becomes an *errs.Error. A reason that this
// release does not know is taken as bug.
func (s *scan) error(err *error) {
	var e *errs.Error
	if !errors.As(*err, &e) {
		e = new(errs.Error)
		*err = e
	}
	m := s.message()
	for m.next() {
		switch m.field {
		case text(1):
			e.Reason = errs.Reason(m.name())
		case text(2):
			e.Msg = m.string()
		case text(3):
			e.Model = m.name()
		case varint(4):
			e.RetryAfter = duration(m.number())
		case text(5):
			e.Op = m.string()
		case text(6):
			e.Err = nil
			if cause := m.string(); cause != "" {
				e.Err = errors.New(cause)
			}
		default:
			m.skip()
		}
	}
	if !e.Reason.Known() {
		e.Reason = errs.Bug
	}
}
