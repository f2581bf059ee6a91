package sequence

import (
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// batch is a batch as the backend sees it.
type batch struct {
	Batch
	in       *Instance
	requests []*infer.Request
	size     int64
	rows     []row // by request; guarded by the instance's mu
}

// row is one of the backend's requests.
type row struct {
	at   int // its index in the batch; -1 for an empty row
	slot *slot
	over bool           // it has had its final response
	next []infer.Tensor // pending states by index; empty where there is none
	free bool           // the instance has moved on: its states are final
}

// slot is a sequence in its slot.
type slot struct {
	index  uint32
	id     uint64
	key    string
	states []infer.Tensor // the model's state inputs
	bytes  int64          // of states that are not initial ones
	runs   bool           // one of its requests is running
	last   mono.Time      // when its last request ended
	ends   bool           // with its current request
	// request runs, or will run again, if the model is iterative.
	request infer.Work
	closed  bool
}

// idle returns how long no request of the sequence has been running.
func (s *slot) idle(now mono.Time) time.Duration {
	if s.runs {
		return 0
	}
	return now.Sub(s.last)
}

// Requests returns the requests of the batch, with their controls and states.
func (b *batch) Requests() []*infer.Request { return b.requests }

// BatchSize includes the empty rows.
func (b *batch) BatchSize() int64 { return b.size }

// Canceled reports whether nobody waits for the response.
func (b *batch) Canceled(i int) bool { return b.rows[i].at < 0 || b.Batch.Canceled(b.rows[i].at) }

// OnCancelEach translates the indices of canceled requests. Empty rows are never canceled individually.
func (b *batch) OnCancelEach(tell func(i int)) {
	b.Batch.OnCancelEach(func(at int) {
		if i := slices.IndexFunc(b.rows, func(r row) bool { return r.at == at }); i >= 0 {
			tell(i)
		}
	})
}

// Respond removes the states from a response, and passes it on.
func (b *batch) Respond(i int, r *infer.Response) {
	if b.rows[i].at < 0 {
		r.Release()
		return
	}
	b.in.mu.Lock()
	b.settleLocked(&b.rows[i], r)
	b.in.mu.Unlock()
	b.Batch.Respond(b.rows[i].at, r)
}

// Room has no limit for empty rows: nobody reads their responses.
func (b *batch) Room(i int) <-chan struct{} {
	if b.rows[i].at >= 0 {
		return b.Batch.Room(b.rows[i].at)
	}
	open := make(chan struct{})
	close(open)
	return open
}

// Call makes a call on behalf of request i. A call for an empty row counts as the whole batch's.
func (b *batch) Call(i int, c *infer.Call, receive func(*infer.Response)) (cancel func()) {
	if i != backend.AllRequests && b.rows[i].at < 0 {
		i = backend.AllRequests
	} else if i != backend.AllRequests {
		i = b.rows[i].at
	}
	return b.Batch.Call(i, c, receive)
}

// settleLocked takes the states of a response. They take effect with the final response.
func (b *batch) settleLocked(row *row, r *infer.Response) {
	if row.over {
		return
	}
	if r.Err == nil && len(b.in.model.states) > 0 {
		b.takeLocked(row, r)
	}
	if !r.Final && r.Err == nil {
		return
	}
	row.over = true
	if r.Err == nil {
		b.commitLocked(row)
	}
	b.closeLocked(row)
}

// takeLocked takes a response's states, and leaves those that the client has asked for. A state that does not match
// the configuration turns the response into an error.
func (b *batch) takeLocked(row *row, r *infer.Response) {
	m, original := b.in.model, b.Batch.Requests()[row.at]
	if row.next == nil {
		row.next = make([]infer.Tensor, len(m.states))
	}
	kept := r.Outputs[:0]
	var failed error
	for _, t := range r.Outputs {
		k := m.stateOf(t.Name)
		if k < 0 {
			kept = append(kept, t)
			continue
		}
		next, err := m.keep(&m.states[k], &t)
		if err != nil {
			failed = errs.Wrap(errs.ExecutionFailed, err, "state '%s' of model '%s': %v", t.Name, m.ref.Name, err).WithModel(m.ref.Name)
		} else {
			row.next[k].Data.Release()
			row.next[k] = next
		}
		if m.config.Output(t.Name) != nil && original.Wants(t.Name) {
			kept = append(kept, t)
		} else {
			t.Data.Release()
		}
	}
	if r.Outputs = kept; failed != nil {
		r.Release()
		r.Outputs, r.Err = nil, failed
	}
}

// commitLocked stores the pending states in the slot.
func (b *batch) commitLocked(row *row) {
	s, grown := row.slot, int64(0)
	if s.closed || row.free {
		return // by a later START
	}
	for k := range row.next {
		if row.next[k].Name == "" {
			continue
		}
		grown += row.next[k].Data.Length
		if s.states[k].Data.Buffer != b.in.model.states[k].initial.Data.Buffer {
			grown -= s.states[k].Data.Length
		}
		s.states[k].Data.Release()
		s.states[k], row.next[k] = row.next[k], infer.Tensor{}
	}
	s.bytes += grown
	b.in.model.deps.Held(grown)
}

// pauseLocked drops a row's pending states: its request has another iteration.
func (b *batch) pauseLocked(row *row) {
	for k := range row.next {
		row.next[k].Data.Release()
	}
	row.next = nil
	row.slot.runs, row.slot.last = false, b.in.model.deps.Clock.Now()
}

// closeLocked ends a row, and drops its slot's states if the sequence ends.
func (b *batch) closeLocked(row *row) {
	b.pauseLocked(row)
	s := row.slot
	s.request = infer.Work{}
	if s.ends && !s.closed {
		b.in.dropLocked(s)
	}
}

// Again also commits the states: the request's next iteration runs on those that have arrived so far. The sequence
// continues, even if the request has END.
func (b *batch) Again(i int) bool {
	row := &b.rows[i]
	if row.at < 0 {
		return false
	}
	again := b.Batch.Again(row.at)
	b.in.mu.Lock()
	defer b.in.mu.Unlock()
	if again && !row.over {
		row.over = true
		b.commitLocked(row)
		b.pauseLocked(row)
	}
	return again
}

// Free commits the states: the next request of a sequence may arrive.
func (b *batch) Free() {
	b.in.mu.Lock()
	for i := range b.rows {
		if row := &b.rows[i]; row.at >= 0 && !row.over {
			b.commitLocked(row)
			row.free = true
		}
	}
	b.in.mu.Unlock()
	b.Batch.Free()
}

// Done ends the batch. Requests without a final response fail, and leave their states unchanged.
func (b *batch) Done() {
	b.end()
	b.Batch.Done()
}

func (b *batch) end() {
	b.in.mu.Lock()
	defer b.in.mu.Unlock()
	for i := range b.rows {
		if row := &b.rows[i]; row.at >= 0 && !row.over {
			row.over = true
			b.closeLocked(row)
		}
	}
}

// keep makes an output the state's next value, with its own reference. If the output is part of a larger buffer, keep
// copies it, since the state would otherwise retain the whole buffer.
func (m *Model) keep(s *state, t *infer.Tensor) (next infer.Tensor, err error) {
	row := t.Shape
	ok := true
	if m.config.Batches() {
		ok = len(row) > 0 && row[0] == 1
		row = row[min(1, len(row)):]
	}
	if t.Datatype != s.config.Datatype || !ok || !s.config.Dims.Admits(row) {
		return next, errs.New(errs.ExecutionFailed, "expected %s%s, got %s%s", s.config.Datatype, oneRow(m.config, s.config.Dims), t.Datatype, t.Shape)
	}
	next = infer.Tensor{Name: s.config.Input, Datatype: t.Datatype, Shape: append(tensor.Shape{}, t.Shape...)}
	data, err := t.Data.Bytes()
	switch {
	case err != nil || len(data) == 0:
		return next, err
	case t.Data.Buffer.Len() == len(data):
		next.Data = t.Data.Retain()
		return next, nil
	}
	buffer, err := m.deps.Pool.Get(len(data))
	if err != nil {
		return next, err
	}
	copy(buffer.Bytes(), data)
	next.Data = tensor.InBuffer(buffer, 0, int64(len(data)))
	return next, nil
}
