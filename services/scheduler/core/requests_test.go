package core

import (
	"slices"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
)

// A gateway that connects anew before all that waited for it has been swept
// submits it again: what still waits then stays, under its new attempt.
func TestResubmittedRequestIsNotSwept(t *testing.T) {
	s := newScript()
	s.step(&Event{Kind: BecomeLeader})
	ref := infer.ModelRef{Name: "m", Version: 1}
	s.step(&Event{Kind: Configure, Model: &Model{Ref: ref, Config: new(modelconfig.Config)}})
	s.connected(1)
	s.step(&Event{Kind: Granted, Grant: &infer.Grant{Instance: infer.InstanceID{Worker: 1}, Model: ref}})
	item := func(number uint64, attempt uint32) *Item {
		return &Item{
			Request: &infer.Request{}, Model: ref, BatchSize: 1, Enqueued: s.now,
			Work: infer.Work{Request: infer.RequestID{Origin: 1, Number: number}, Attempt: attempt},
		}
	}
	const last = stride + 2
	for n := range uint64(last) {
		s.core.Step(s.now, &Event{Kind: Submit, Item: item(n+1, 1)})
	}
	s.core.Step(s.now, &Event{Kind: GatewayDisconnected, Origin: 1})
	if got := s.core.InFlight(); got != last-stride {
		t.Fatalf("%d requests wait after the first part of the sweep, want %d", got, last-stride)
	}
	again := s.core.Step(s.now, &Event{Kind: Submit, Item: item(last, 2)})
	if len(again) == 0 || again[0].Kind != HandOff || again[0].Reason != errs.RequestUnderway {
		t.Fatalf("the request that waits is answered with %+v", again)
	}
	for !s.core.Settled() {
		s.core.Step(s.now, &Event{Kind: Tick})
	}
	if got := s.core.InFlight(); got != 1 {
		t.Errorf("%d requests wait, want the one that was submitted again", got)
	}
}

// TestReleasedLeaseIsNoReport has a worker stop while a scheduler waits for its report: it
// may have run a request whose answer was lost.
func TestReleasedLeaseIsNoReport(t *testing.T) {
	c, now := New(Config{}), scriptStart
	c.Step(now, &Event{Kind: Configure, Model: &Model{Ref: poolModel, Config: &modelconfig.Config{MaxBatchSize: 2, Batching: &modelconfig.DynamicBatching{}}}})
	c.Step(now, &Event{Kind: LeaseHeld, Key: "w", Instance: infer.InstanceID{Worker: 3}, Revision: 3})
	c.Step(now, &Event{Kind: BecomeLeader, Epoch: 9, History: History{Workers: []uint64{3}}, Until: now.Add(5 * time.Second)})
	work := infer.Work{Request: infer.RequestID{Origin: 1, Number: 1}, Attempt: 2, Epoch: 2}
	c.Step(now, &Event{Kind: Submit, Item: &Item{Request: &infer.Request{Work: work, BatchSize: 1}, Work: work, Model: poolModel, BatchSize: 1, Enqueued: now}})
	ended := slices.Clone(c.Step(now, &Event{Kind: LeaseEnded, Key: "w", Revision: 10, Released: true}))
	for !c.Settled() {
		ended = append(ended, c.Step(now, &Event{Kind: Tick})...)
	}
	i := slices.IndexFunc(ended, func(d Decision) bool { return d.Kind == Fail || d.Kind == Refuse || d.Kind == Dispatch })
	if i < 0 || ended[i].Kind != Fail || ended[i].Reason != errs.InstanceCrashed {
		t.Fatalf("decided %+v, want the request to fail as instance_crashed", ended)
	}
}
