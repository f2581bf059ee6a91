package instance

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
)

// progress is the state of a request's responses so far. It carries over to the next iteration.
type progress struct {
	next  uint32    // index of the next response
	first mono.Time // when the first of several responses was sent
	given mono.Time // when the last of them was sent
	// responses is reported with the end, which takes ownership of it.
	responses infer.UnitResponses
	window    *window // for several responses; nil until it is needed
}

// paused is the progress of a request between two iterations. The lane is not notified if the scheduler ends the
// request in the meantime: the progress is dropped when the slot gets another request.
type paused struct {
	slot    uint32
	request infer.RequestID
	progress
}

// Again ends request i in this batch, and makes the scheduler run it again.
func (b *batch) Again(i int) bool {
	b.mu.Lock()
	s := &b.slots[i]
	var refused *infer.Response
	switch {
	case s.ended || b.done:
		b.mu.Unlock()
		return false
	case s.canceled.Load():
		refused = &infer.Response{Err: errs.New(errs.Canceled, "")}
	case b.freed:
		refused = &infer.Response{Err: errs.New(errs.Bug, "the backend of instance %s asks for a request to run again after its instance was free", b.lane.spec.Name).
			WithModel(b.lane.spec.Model.Name)}
	case !b.lane.spec.Iterative || i >= len(b.of.Slots):
		refused = &infer.Response{Err: errs.New(errs.ExecutionFailed,
			"model '%s' asks for a request to run again, which sequence_batching { iterative_sequence: true } in its configuration allows", b.lane.spec.Model.Name).
			WithModel(b.lane.spec.Model.Name)}
	default:
		s.ended, s.again = true, true
		b.waiting--
		b.pauseLocked(i)
	}
	b.mu.Unlock()
	if refused != nil {
		b.Respond(i, refused)
	}
	return refused == nil
}

// pauseLocked saves the progress of request i for the batch that runs it next.
func (b *batch) pauseLocked(i int) {
	s := &b.slots[i]
	b.pausing = append(b.pausing, paused{b.of.Slots[i].Index, b.of.Requests[i].Work.Request, s.progress})
	s.progress = progress{}
}

// pause retains the progress of requests that will run again. The caller holds executor.mu.
func (l *lane) pause(list []paused) {
	if l.paused == nil && len(list) > 0 {
		l.paused = make(map[uint32]paused)
	}
	for _, p := range list {
		l.paused[p.slot] = p
	}
}

// resume returns the progress of the request that a slot has now. The caller holds executor.mu.
func (l *lane) resume(slot uint32, request infer.RequestID) progress {
	p := l.paused[slot]
	delete(l.paused, slot)
	if p.request != request {
		return progress{}
	}
	return p.progress
}
