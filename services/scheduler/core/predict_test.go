package core

import (
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
)

// queued is a model of one instance whose executions take 8 or 12 ms in turn,
// with a queue of 100 requests behind the one that runs.
func queued(t *testing.T) *script {
	t.Helper()
	s := newScript()
	s.step(&Event{Kind: BecomeLeader})
	ref := infer.ModelRef{Name: "m", Version: 1}
	s.step(&Event{Kind: Configure, Model: &Model{Ref: ref, Config: &modelconfig.Config{}}})
	id := infer.InstanceID{Worker: 1}
	s.connected(1)
	s.step(&Event{Kind: Granted, Grant: &infer.Grant{Instance: id, Model: ref, Credits: 1}})
	for n := range uint64(200) {
		s.submit(n+1, 0)
		took := time.Duration(8+4*(n%2)) * time.Millisecond
		begin := s.now
		s.now = s.now.Add(took)
		s.step(&Event{Kind: InstanceFree, Ended: &infer.InstanceFree{
			Batch: infer.BatchID{Number: n + 1}, Instance: id, Credits: 1, Executions: 1, Timing: infer.Timing{Start: begin, Done: s.now},
		}})
	}
	for n := range uint64(101) {
		s.submit(1000+n, 0)
	}
	return s
}

// submit returns why a request was refused, if it was.
func (s *script) submit(number uint64, within time.Duration) (reason errs.Reason) {
	it := &Item{
		Request: &infer.Request{}, Work: infer.Work{Request: infer.RequestID{Number: number}},
		Model: infer.ModelRef{Name: "m", Version: 1}, BatchSize: 1, Enqueued: s.now,
	}
	if within > 0 {
		it.Deadline = s.now.Add(within)
	}
	for _, d := range s.core.Step(s.now, &Event{Kind: Submit, Item: it}) {
		if d.Kind == Refuse {
			reason = d.Reason
		}
	}
	return reason
}

// The queue takes 1010 ms. Were each of its batches counted by its upper
// estimate, it would be 1400 ms.
func TestDeviationsWithinAQueueEvenOut(t *testing.T) {
	for within, want := range map[time.Duration]errs.Reason{
		1100 * time.Millisecond: "",
		1010 * time.Millisecond: errs.DeadlineUnmeetable,
	} {
		if got := queued(t).submit(1, within); got != want {
			t.Errorf("with %v left: refused for %q, want %q", within, got, want)
		}
	}
}
