package wire

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Order writes an ExecutionOrder. A deadline that has passed crosses as the
// shortest one that is left, since the worker, to which the requests pass, is
// who finishes them.
func (w *Writer) Order(o *infer.Order, now mono.Time) error {
	begun := w.begin(OrderExecution)
	w.number(1, o.ID)
	w.number(2, o.Epoch)
	w.instance(3, o.Instance)
	for i, r := range o.Requests {
		m := w.open(4)
		left, bounded := r.Deadline.Left(now)
		if bounded {
			left = max(left, 1)
		}
		w.descriptor(1, r, left)
		w.number(2, nanoseconds(now.Sub(o.Enqueued[i])))
		w.close(m)
	}
	if left, bounded := o.LatestStart.Left(now); bounded {
		w.number(5, uint64(max(left, 1)))
	}
	return w.end(begun)
}

// CancelOrder writes a CancelOrder.
func (w *Writer) CancelOrder(order uint64, id infer.RequestID) error {
	begun := w.begin(OrderCancel)
	w.number(1, order)
	w.requestID(2, id)
	return w.end(begun)
}

// Completion writes a Completion.
func (w *Writer) Completion(c *infer.Completion) error {
	begun := w.begin(WorkerCompletion)
	w.number(1, c.Order)
	w.number(2, c.Epoch)
	w.instance(3, c.Instance)
	outcomes := w.open(4)
	for _, o := range c.Outcomes {
		w.bytes = protowire.AppendVarint(w.bytes, uint64(Outcome(o)))
	}
	w.close(outcomes)
	w.number(5, uint64(max(c.Executions, 0)))
	w.number(6, uint64(c.Rows))
	timing := w.open(7)
	w.number(2, nanoseconds(c.Timing.Input()))
	w.number(3, nanoseconds(c.Timing.Infer()))
	w.number(4, nanoseconds(c.Timing.Output()))
	w.close(timing)
	w.number(8, uint64(max(c.Credits, 0)))
	if len(c.FirstResponses) > 0 {
		firsts := w.open(9)
		for _, t := range c.FirstResponses {
			ago := uint64(0)
			if t != 0 {
				ago = max(nanoseconds(c.Timing.Done.Sub(t)), 1)
			}
			w.bytes = protowire.AppendVarint(w.bytes, ago)
		}
		w.close(firsts)
	}
	return w.end(begun)
}

// Order reads an ExecutionOrder that came at now. The requests are the
// caller's.
func (r *Reader) Order(b Body, now mono.Time) (*infer.Order, error) {
	s := r.begin(b)
	o := new(infer.Order)
	for s.next() {
		switch s.field {
		case varint(1):
			o.ID = s.number()
		case varint(2):
			o.Epoch = s.number()
		case text(3):
			s.instance(&o.Instance)
		case text(4):
			s.ordered(o, now)
		case varint(5):
			o.LatestStart = 0
			if left := s.number(); left > 0 {
				o.LatestStart = after(now, left)
			}
		default:
			s.skip()
		}
	}
	if err := r.end(); err != nil {
		for _, request := range o.Requests {
			request.Release()
		}
		return nil, err
	}
	return o, nil
}

func (s *scan) ordered(o *infer.Order, now mono.Time) {
	s.rd.entry()
	d, queued := newRequest(), uint64(0)
	m := s.message()
	for m.next() {
		switch m.field {
		case text(1):
			m.descriptor(d)
		case varint(2):
			queued = m.number()
		default:
			m.skip()
		}
	}
	o.Requests = append(o.Requests, d.made(now))
	o.Enqueued = append(o.Enqueued, before(now, queued))
}

// CancelOrder reads a CancelOrder.
func (r *Reader) CancelOrder(b Body) (order uint64, id infer.RequestID, err error) {
	s := r.begin(b)
	for s.next() {
		switch s.field {
		case varint(1):
			order = s.number()
		case text(2):
			s.requestID(&id)
		default:
			s.skip()
		}
	}
	return order, id, r.end()
}

// Completion reads a Completion that came at now, which it takes for the end of
// the execution.
func (r *Reader) Completion(b Body, now mono.Time) (*infer.Completion, error) {
	s := r.begin(b)
	c := new(infer.Completion)
	var phases [5]uint64
	for s.next() {
		switch {
		case s.field == varint(1):
			c.Order = s.number()
		case s.field == varint(2):
			c.Epoch = s.number()
		case s.field == text(3):
			s.instance(&c.Instance)
		case s.field == varint(5):
			c.Executions = int(uint32(s.number()))
		case s.field == varint(6):
			c.Rows = int64(s.number())
		case s.field == text(7):
			s.timing(&phases)
		case s.field == varint(8):
			c.Credits = int(uint32(s.number()))
		case s.outcomes(c) || s.firsts(c, now):
		default:
			s.skip()
		}
	}
	c.Timing = timing(phases, now)
	if c.Rows < 0 || len(c.FirstResponses) > 0 && len(c.FirstResponses) != len(c.Outcomes) {
		r.fail(malformed("a completion has %d rows, %d outcomes and %d first responses", c.Rows, len(c.Outcomes), len(c.FirstResponses)))
	}
	return c, r.end()
}

func (s *scan) outcomes(c *infer.Completion) bool {
	return s.list(4, func(v uint64) {
		s.rd.entry()
		c.Outcomes = append(c.Outcomes, OutcomeOf(nereidv1.Outcome(v)))
	})
}

func (s *scan) firsts(c *infer.Completion, now mono.Time) bool {
	return s.list(9, func(ago uint64) {
		s.rd.entry()
		first := mono.Time(0)
		if ago > 0 {
			first = before(now, ago)
		}
		c.FirstResponses = append(c.FirstResponses, first)
	})
}

// timing reads a Timing's fields by their numbers.
func (s *scan) timing(phases *[5]uint64) {
	m := s.message()
	for m.next() {
		if n := int(m.field.Num); n < len(phases) && m.field == varint(m.field.Num) {
			phases[n] = m.number()
		} else {
			m.skip()
		}
	}
}

// timing rebuilds the times of an execution that ended at done.
func timing(phases [5]uint64, done mono.Time) (t infer.Timing) {
	t.Done = done
	t.InferDone = before(t.Done, phases[4])
	t.InputDone = before(t.InferDone, phases[3])
	t.Start = before(t.InputDone, phases[2])
	return t
}

// Outcome is the message's word for an outcome.
func Outcome(o infer.Outcome) nereidv1.Outcome { return nereidv1.Outcome(o) + 1 }

// OutcomeOf is the outcome of a message's word; one that is not known is a
// failure.
func OutcomeOf(o nereidv1.Outcome) infer.Outcome {
	if o < nereidv1.Outcome_OUTCOME_SUCCEEDED || o > nereidv1.Outcome_OUTCOME_REJECTED {
		return infer.Failed
	}
	return infer.Outcome(o - 1)
}
