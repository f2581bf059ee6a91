package codec

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Batch writes a Batch. A deadline that has passed crosses as the shortest one
// that is left, since the worker, to which the requests pass, is who finishes
// them.
func (w *Writer) Batch(b *infer.Batch, now mono.Time) error {
	begun := w.begin(WorkBatch)
	w.number(1, b.ID.Number)
	w.number(2, b.ID.Epoch)
	w.instance(3, b.Instance)
	for i, r := range b.Requests {
		m := w.open(4)
		left, bounded := r.Deadline.Left(now)
		if bounded {
			left = max(left, 1)
		}
		w.descriptor(1, r, left)
		w.number(2, nanoseconds(now.Sub(b.Enqueued[i])))
		if len(b.Slots) > 0 {
			slot := w.open(3)
			w.number(1, uint64(b.Slots[i].Index))
			w.sequence(2, &b.Slots[i].Sequence)
			w.close(slot)
		}
		w.close(m)
	}
	if left, bounded := b.LatestStart.Left(now); bounded {
		w.number(5, uint64(max(left, 1)))
	}
	return w.end(begun)
}

// CancelUnit writes a CancelUnit.
func (w *Writer) CancelUnit(batch infer.BatchID, id infer.RequestID) error {
	begun := w.begin(WorkCancel)
	w.number(1, batch.Number)
	w.requestID(2, id)
	w.number(3, batch.Epoch)
	return w.end(begun)
}

// InstanceFree writes an InstanceFree.
func (w *Writer) InstanceFree(f *infer.InstanceFree) error {
	begun := w.begin(WorkerInstanceFree)
	w.number(1, f.Batch.Number)
	w.number(2, f.Batch.Epoch)
	w.instance(3, f.Instance)
	outcomes := w.open(4)
	for _, o := range f.Outcomes {
		w.bytes = protowire.AppendVarint(w.bytes, uint64(Outcome(o)))
	}
	w.close(outcomes)
	w.number(5, uint64(max(f.Executions, 0)))
	w.number(6, uint64(f.BatchSize))
	timing := w.open(7)
	w.number(2, nanoseconds(f.Timing.Input()))
	w.number(3, nanoseconds(f.Timing.Infer()))
	w.number(4, nanoseconds(f.Timing.Output()))
	w.close(timing)
	w.number(8, uint64(max(f.Credits, 0)))
	if len(f.FirstResponses) > 0 {
		firsts := w.open(9)
		for _, t := range f.FirstResponses {
			w.bytes = protowire.AppendVarint(w.bytes, ago(f.Timing.Done, t))
		}
		w.close(firsts)
	}
	if len(f.Ends) > 0 {
		ends := w.open(10)
		for _, e := range f.Ends {
			w.bytes = protowire.AppendVarint(w.bytes, uint64(e))
		}
		w.close(ends)
	}
	for i := range f.Responses {
		w.unitResponses(11, &f.Responses[i])
	}
	return w.end(begun)
}

func (w *Writer) unitResponses(num protowire.Number, u *infer.UnitResponses) {
	m := w.open(num)
	times := w.open(1)
	for _, d := range u.Times {
		w.bytes = protowire.AppendVarint(w.bytes, nanoseconds(d))
	}
	w.close(times)
	if u.Empty {
		w.number(2, 1)
	}
	w.close(m)
}

// ago is how long before now something was; 0 if it was not.
func ago(now, t mono.Time) uint64 {
	if t == 0 {
		return 0
	}
	return max(nanoseconds(now.Sub(t)), 1)
}

// UnitDone writes a UnitDone.
func (w *Writer) UnitDone(d *infer.UnitDone) error {
	begun := w.begin(WorkerUnitDone)
	w.work(&d.Work)
	w.number(2, d.Batch.Number)
	w.number(3, d.Batch.Epoch)
	w.instance(4, d.Instance)
	w.number(5, uint64(Outcome(d.Outcome)))
	w.number(6, ago(d.At, d.FirstResponse))
	if len(d.Responses.Times) > 0 {
		w.unitResponses(7, &d.Responses)
	}
	return w.end(begun)
}

// Batch reads a Batch that came at now. The requests are the caller's.
func (r *Reader) Batch(body Body, now mono.Time) (*infer.Batch, error) {
	s := r.begin(body)
	b := new(infer.Batch)
	for s.next() {
		switch s.field {
		case varint(1):
			b.ID.Number = s.number()
		case varint(2):
			b.ID.Epoch = s.number()
		case text(3):
			s.instance(&b.Instance)
		case text(4):
			s.batchRequest(b, now)
		case varint(5):
			b.LatestStart = 0
			if left := s.number(); left > 0 {
				b.LatestStart = after(now, left)
			}
		default:
			s.skip()
		}
	}
	if err := r.end(); err != nil {
		for _, request := range b.Requests {
			request.Release()
		}
		return nil, err
	}
	return b, nil
}

func (s *scan) batchRequest(b *infer.Batch, now mono.Time) {
	s.rd.entry()
	counted := s.rd.entries
	s.rd.entries = 0 // each request may have as many as one that comes alone
	d, queued := newRequest(), uint64(0)
	var slot infer.Slot
	m, slotted := s.message(), false
	for m.next() {
		switch m.field {
		case text(1):
			m.descriptor(d)
		case varint(2):
			queued = m.number()
		case text(3):
			m.slot(&slot)
			slotted = true
		default:
			m.skip()
		}
	}
	s.rd.entries = counted
	if slotted && len(b.Slots) == len(b.Requests) { // of none, if one before had none
		b.Slots = append(b.Slots, slot)
	} else {
		b.Slots = nil
	}
	b.Requests = append(b.Requests, d.made(now))
	b.Enqueued = append(b.Enqueued, before(now, queued))
}

func (s *scan) slot(v *infer.Slot) {
	m := s.message()
	for m.next() {
		switch m.field {
		case varint(1):
			v.Index = uint32(min(m.number(), math.MaxUint32))
		case text(2):
			m.sequence(&v.Sequence)
		default:
			m.skip()
		}
	}
}

// CancelUnit reads a CancelUnit.
func (r *Reader) CancelUnit(b Body) (batch infer.BatchID, id infer.RequestID, err error) {
	s := r.begin(b)
	for s.next() {
		switch s.field {
		case varint(1):
			batch.Number = s.number()
		case text(2):
			s.requestID(&id)
		case varint(3):
			batch.Epoch = s.number()
		default:
			s.skip()
		}
	}
	return batch, id, r.end()
}

// InstanceFree reads an InstanceFree that came at now, which it takes for the end
// of the execution.
func (r *Reader) InstanceFree(b Body, now mono.Time) (*infer.InstanceFree, error) {
	s := r.begin(b)
	f := new(infer.InstanceFree)
	var phases [5]uint64
	for s.next() {
		switch {
		case s.field == varint(1):
			f.Batch.Number = s.number()
		case s.field == varint(2):
			f.Batch.Epoch = s.number()
		case s.field == text(3):
			s.instance(&f.Instance)
		case s.field == varint(5):
			f.Executions = int(uint32(s.number()))
		case s.field == varint(6):
			f.BatchSize = int64(s.number())
		case s.field == text(7):
			s.timing(&phases)
		case s.field == varint(8):
			f.Credits = int(uint32(s.number()))
		case s.field == text(11):
			s.rd.entry()
			f.Responses = append(f.Responses, infer.UnitResponses{})
			s.unitResponses(&f.Responses[len(f.Responses)-1])
		case s.outcomes(f) || s.firsts(f, now) || s.ends(f):
		default:
			s.skip()
		}
	}
	f.Timing = timing(phases, now)
	n := len(f.Outcomes)
	other := func(length int) bool { return length > 0 && length != n }
	if f.BatchSize < 0 || other(len(f.FirstResponses)) || other(len(f.Ends)) || other(len(f.Responses)) {
		r.fail(malformed("the end of a batch has the batch size %d, %d outcomes, %d first responses, %d ends and %d lists of responses",
			f.BatchSize, n, len(f.FirstResponses), len(f.Ends), len(f.Responses)))
	}
	return f, r.end()
}

func (s *scan) outcomes(f *infer.InstanceFree) bool {
	return s.list(4, func(v uint64) {
		s.rd.entry()
		f.Outcomes = append(f.Outcomes, OutcomeOf(nereidv1.Outcome(v)))
	})
}

func (s *scan) firsts(f *infer.InstanceFree, now mono.Time) bool {
	return s.list(9, func(ago uint64) {
		s.rd.entry()
		f.FirstResponses = append(f.FirstResponses, first(now, ago))
	})
}

// ends reads what becomes of the units. What is not known has ended.
func (s *scan) ends(f *infer.InstanceFree) bool {
	return s.list(10, func(v uint64) {
		s.rd.entry()
		end := infer.UnitEnded
		if known := uint32(v); known <= uint32(infer.UnitAgain) { // protobuf takes the lower half of an enum, too
			end = infer.UnitEnd(known)
		}
		f.Ends = append(f.Ends, end)
	})
}

// first is when something was so long ago; 0 if it was not.
func first(now mono.Time, ago uint64) mono.Time {
	if ago == 0 {
		return 0
	}
	return before(now, ago)
}

// unitResponses reads the responses of a unit, of which so many have times.
func (s *scan) unitResponses(u *infer.UnitResponses) {
	m := s.message()
	for m.next() {
		switch {
		case m.field == varint(2):
			u.Empty = m.number() != 0
		case m.list(1, func(ns uint64) {
			s.rd.entry()
			if len(u.Times) < infer.MaxResponseTimes {
				u.Times = append(u.Times, duration(ns))
			}
		}):
		default:
			m.skip()
		}
	}
}

// UnitDone reads a UnitDone that came at now, which it takes for the unit's end.
func (r *Reader) UnitDone(b Body, now mono.Time) (infer.UnitDone, error) {
	s := r.begin(b)
	d := infer.UnitDone{At: now, Outcome: infer.Failed}
	for s.next() {
		switch s.field {
		case text(1):
			s.work(&d.Work)
		case varint(2):
			d.Batch.Number = s.number()
		case varint(3):
			d.Batch.Epoch = s.number()
		case text(4):
			s.instance(&d.Instance)
		case varint(5):
			d.Outcome = OutcomeOf(nereidv1.Outcome(s.number()))
		case varint(6):
			d.FirstResponse = first(now, s.number())
		case text(7):
			s.unitResponses(&d.Responses)
		default:
			s.skip()
		}
	}
	return d, r.end()
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
