package attach

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/schedule"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/batches"
)

var (
	slot  = infer.InstanceID{Worker: 7, Slot: 1}
	grant = infer.Grant{Instance: slot, Model: infer.ModelRef{Name: "m"}, Credits: 2}
)

// scene is an attachment between a worker and schedulers, both of the test.
type scene struct {
	a        *Attachment
	now      mono.Time
	orders   []uint64
	canceled []infer.RequestID
	retired  int
}

func (s *scene) Now() mono.Time           { return s.now }
func (s *scene) Execute(o *infer.Batch)   { s.orders = append(s.orders, o.ID.Number) }
func (s *scene) Retired(infer.InstanceID) { s.retired++ }
func (s *scene) Cancel(_ infer.BatchID, id infer.RequestID) {
	s.canceled = append(s.canceled, id)
}

func newScene() *scene {
	s := &scene{now: 1}
	s.a = New(Deps{Clock: s, Lease: 5 * time.Second, Log: zap.NewNop(), Batches: batches.New()})
	s.a.Attach(slot.Worker, infer.Held{}, s)
	s.a.Grant(grant)
	return s
}

// session is a scheduler's as the attachment sees it.
type session struct {
	*receiver
	epoch     uint64
	credits   []int
	completed []int // credits of the completions
	refused   []errs.Reason
	retires   int
	left      chan struct{}
	leaves    int
	ended     error
	closed    bool
}

func (x *session) Grant(g infer.Grant)                { x.credits = append(x.credits, g.Credits) }
func (x *session) Retire(infer.InstanceID)            { x.retires++ }
func (x *session) InstanceFree(c *infer.InstanceFree) { x.completed = append(x.completed, c.Credits) }

func (x *session) Return(_ *infer.Batch, err error) { x.refused = append(x.refused, errs.Of(err)) }
func (x *session) UnitDone(infer.UnitDone)          {}
func (x *session) Leave()                           { x.leaves++ }
func (x *session) Left() <-chan struct{}            { return x.left }
func (x *session) Close()                           { x.closed = true }
func (x *session) Done() <-chan struct{}            { return nil }
func (x *session) Err() error                       { return x.ended }
func (x *session) Scheduler() schedule.Scheduler    { return schedule.Scheduler{Epoch: x.epoch} }

// hello is what the worker would tell the scheduler of an epoch, and the session
// that follows.
func (s *scene) hello(epoch uint64) (infer.Held, *session) {
	held, _ := s.a.deps.Batches.Hello(epoch)
	return held, &session{receiver: (*receiver)(s.a), epoch: epoch, ended: errs.New(errs.NoWorker, "killed")}
}

func (s *scene) connect(epoch uint64) (infer.Held, *session) {
	held, x := s.hello(epoch)
	s.a.begin(x, epoch)
	return held, x
}

func orderOf(id, epoch uint64) *infer.Batch {
	return &infer.Batch{ID: infer.BatchID{Epoch: epoch, Number: id}, Instance: slot, Requests: []*infer.Request{
		{Work: infer.Work{Request: infer.RequestID{Origin: 1, Number: id}, Attempt: 1}},
	}}
}

func completion(id, epoch uint64) *infer.InstanceFree {
	return &infer.InstanceFree{Batch: infer.BatchID{Epoch: epoch, Number: id}, Instance: slot, Outcomes: make([]infer.Outcome, 1), Credits: 1}
}

// running are the orders that a hello names, begun whether it names a request.
func running(h infer.Held) (list []uint64) {
	for _, r := range h.Running {
		list = append(list, r.Batch.Number)
	}
	return list
}

func begun(h infer.Held, id uint64) bool {
	var set infer.Recent
	for _, b := range h.Started {
		set.Merge(b)
	}
	return set.Lookup(infer.RequestID{Origin: 1, Number: id}) == infer.Present
}

func TestNextSchedulerHearsWhatTheWorkerHas(t *testing.T) {
	s := newScene()
	_, first := s.connect(3)
	first.Execute(orderOf(1, 3))
	first.Execute(orderOf(2, 3))
	s.a.InstanceFree(completion(1, 3))
	s.a.end(t.Context(), first)
	held, second := s.connect(5)
	if diff := cmp.Diff([]uint64{2}, running(held)); diff != "" || !begun(held, 1) || begun(held, 3) || held.Epoch != 5 {
		t.Errorf("the hello: %+v", held)
	}
	s.a.InstanceFree(completion(2, 3))
	if diff := cmp.Diff([][]int{{2}, {1}, {1}, {1}}, [][]int{first.credits, first.completed, second.credits, second.completed}); diff != "" {
		t.Errorf("credits granted and given back, by session: %s", diff)
	}
}

func TestNextSchedulerHearsHowManyRowsRun(t *testing.T) {
	s := newScene()
	_, first := s.connect(3)
	o := orderOf(1, 3)
	o.Requests[0].BatchSize = 8
	first.Execute(o)
	s.a.end(t.Context(), first)
	held, _ := s.connect(5)
	if got := held.Running[0].BatchSizeOf(0); got != 8 {
		t.Errorf("the hello says %d rows, want 8", got)
	}
}

// What completes between the hello and the session is told on it, and its credit
// is among those granted.
func TestCompletionBesideAHello(t *testing.T) {
	s := newScene()
	_, first := s.connect(3)
	first.Execute(orderOf(1, 3))
	s.a.end(t.Context(), first)
	_, second := s.hello(3)
	s.a.InstanceFree(completion(1, 3))
	s.a.begin(second, 3)
	if diff := cmp.Diff([][]int{{2}, {0}}, [][]int{second.credits, second.completed}); diff != "" {
		t.Error(diff)
	}
}

func TestCompletionWithoutASchedulerIsToldByTheNextHello(t *testing.T) {
	s := newScene()
	_, first := s.connect(3)
	first.Execute(orderOf(1, 3))
	s.a.end(t.Context(), first)
	s.a.InstanceFree(completion(1, 3))
	held, second := s.connect(3)
	if len(held.Running) != 0 || !begun(held, 1) || len(second.completed) != 0 {
		t.Errorf("the hello: %+v; completions: %v", held, second.completed)
	}
}

func TestLowerEpochsAreRefused(t *testing.T) {
	s := newScene()
	_, first := s.connect(3)
	if _, ok := s.a.deps.Batches.Hello(5); !ok {
		t.Fatal("a later scheduler is not met")
	}
	first.Execute(orderOf(1, 3))
	if len(s.orders) != 0 {
		t.Errorf("orders %v of a scheduler that was replaced are run", s.orders)
	}
	held, late := s.hello(4)
	if held.Epoch != 5 {
		t.Errorf("a scheduler of epoch 4 hears of epoch %d, want 5: it would not know that it was replaced", held.Epoch)
	}
	if s.a.begin(late, 4) {
		t.Error("a session with a scheduler that was replaced has begun")
	}
}

func TestRefusalReachesWhoKnowsOfTheOrder(t *testing.T) {
	s := newScene()
	_, first := s.connect(3)
	first.Execute(orderOf(1, 3))
	first.Execute(orderOf(2, 3))
	s.a.Return(orderOf(1, 3), errs.New(errs.NoWorker, ""))
	s.a.end(t.Context(), first)
	_, second := s.connect(3)
	s.a.Return(orderOf(2, 3), errs.New(errs.NoWorker, ""))
	held, _ := s.connect(3)
	if len(first.refused) != 1 || len(second.refused) != 0 || !second.closed || len(held.Running) != 0 || begun(held, 1) || begun(held, 2) {
		t.Errorf("refused %v and %v, closed %v, then held %+v", first.refused, second.refused, second.closed, held)
	}
}

// What was answered of an order that is given back has begun, what was not has
// not, even where no scheduler is told of the refusal.
func TestAnsweredRequestsOfARefusedOrderHaveBegun(t *testing.T) {
	s := newScene()
	_, first := s.connect(3)
	whole, rest := orderOf(1, 3), orderOf(1, 3)
	whole.Requests = append(whole.Requests, orderOf(2, 3).Requests...)
	first.Execute(whole)
	s.a.end(t.Context(), first)
	s.a.Return(rest, errs.New(errs.NoWorker, ""))
	if held, _ := s.hello(3); begun(held, 1) || !begun(held, 2) || len(held.Running) != 0 {
		t.Errorf("the hello: %+v", held)
	}
}

func TestInstancesRetireWithAndWithoutAScheduler(t *testing.T) {
	s := newScene()
	_, first := s.connect(3)
	s.a.Retire(slot)
	if first.retires != 1 || s.retired != 0 {
		t.Errorf("asked %d times, retired %d times", first.retires, s.retired)
	}
	s.a.end(t.Context(), first)
	if s.retired != 1 {
		t.Error("the instance has not retired, though no order can come")
	}
	if _, second := s.connect(3); len(second.credits) != 0 {
		t.Errorf("a retired instance is granted: %v", second.credits)
	}
	s.a.Grant(infer.Grant{Instance: infer.InstanceID{Worker: 7, Slot: 2}, Credits: 1})
	s.a.end(t.Context(), first)
	s.a.Retire(infer.InstanceID{Worker: 7, Slot: 2})
	if s.retired != 2 {
		t.Error("without a scheduler the instance has not retired")
	}
}

// A worker that stood still for longer than its lease lives begins nothing from
// before, whether the pulse or a lane goes on first.
func TestNothingFromBeforeAPauseIsFresh(t *testing.T) {
	second := mono.Time(time.Second)
	for _, beat := range []bool{false, true} {
		s := &scene{now: second}
		p := NewPulse(s, 5*time.Second)
		if s.now += 4 * second; !p.Fresh(second) {
			t.Error("not fresh after a short pause")
		}
		s.now += 60 * second
		if beat && p.beat() != 64*time.Second {
			t.Error("the pulse has not noticed")
		}
		if p.Fresh(second) || !p.Fresh(s.now) {
			t.Errorf("after a long pause: before it %v, after it %v", p.Fresh(second), p.Fresh(s.now))
		}
		p.beat()
		s.now += second
		if p.beat(); p.Fresh(second) || !p.Fresh(s.now) {
			t.Errorf("later: before the pause %v, now %v", p.Fresh(second), p.Fresh(s.now))
		}
	}
}

// TestSessionOfAWorkerThatStops is over without a warning.
func TestSessionOfAWorkerThatStops(t *testing.T) {
	core, warnings := observer.New(zap.WarnLevel)
	s := newScene()
	s.a.deps.Log = zap.New(core)
	_, first := s.connect(3)
	s.a.end(t.Context(), first)
	if warnings.Len() != 1 {
		t.Errorf("%d warnings of a lost session, want 1", warnings.Len())
	}
	_, drained := s.connect(4)
	drained.ended = errs.New(errs.SchedulerDeposed, "handed over")
	s.a.end(t.Context(), drained)
	_, second := s.connect(4)
	s.a.Detach(slot.Worker)
	s.a.end(t.Context(), second)
	if warnings.Len() != 1 {
		t.Errorf("a warning of the session of a worker that has ended: %v", warnings.All())
	}
}

// The references of requests that run again are the scheduler's own in its process:
// those that were fetched here are given up.
func TestInputsOfRequestsThatRunAgainAreReleased(t *testing.T) {
	s := newScene()
	_, x := s.connect(5)
	o := orderOf(1, 5)
	freed := 0
	o.Requests = append(o.Requests, &infer.Request{
		Work:   infer.Work{Request: infer.RequestID{Origin: 1, Number: 9}},
		Inputs: []infer.Tensor{{Data: tensor.InBuffer(tensor.Wrap(make([]byte, 4), false, func(*tensor.Buffer) { freed++ }), 0, 4)}},
	})
	x.Execute(o)
	f := completion(1, 5)
	f.Outcomes = make([]infer.Outcome, len(o.Requests))
	f.Ends = make([]infer.UnitEnd, len(o.Requests))
	f.Ends[len(f.Ends)-1] = infer.UnitAgain
	f.Again = o.Requests[len(o.Requests)-1:]
	s.a.InstanceFree(f)
	if freed != 1 || len(x.completed) != 1 {
		t.Errorf("released %d times, told %d times", freed, len(x.completed))
	}
}

// What runs for a gateway that is gone is canceled, but not what has ended or is
// another's.
func TestRequestsOfAGatewayThatIsGoneAreCanceled(t *testing.T) {
	const gone, other = 5, 6
	s := newScene()
	_, x := s.connect(1)
	id := func(gateway, number uint64) infer.RequestID { return infer.RequestID{Origin: gateway, Number: number} }
	for batch, origins := range [][]uint64{{gone, other, gone}, {gone}} {
		b := &infer.Batch{ID: infer.BatchID{Epoch: 1, Number: uint64(batch)}, Instance: slot}
		for i, origin := range origins {
			b.Requests = append(b.Requests, &infer.Request{Work: infer.Work{Request: id(origin, uint64(10*batch+i))}})
		}
		x.Execute(b)
	}
	s.a.InstanceFree(&infer.InstanceFree{
		Batch: infer.BatchID{Epoch: 1}, Instance: slot, Outcomes: make([]infer.Outcome, 3), Ends: []infer.UnitEnd{infer.UnitEnded, infer.UnitMore, infer.UnitMore},
	})
	s.a.Abandon(gone)
	slices.SortFunc(s.canceled, func(a, b infer.RequestID) int { return int(a.Number) - int(b.Number) })
	if diff := cmp.Diff([]infer.RequestID{id(gone, 2), id(gone, 10)}, s.canceled); diff != "" {
		t.Errorf("canceled (-want +got):\n%s", diff)
	}
}

// TestLeaveIsReportedUntilASchedulerConfirmsIt has a worker that has ended lose the
// scheduler that it told: the next one is told again.
func TestLeaveIsReportedUntilASchedulerConfirmsIt(t *testing.T) {
	s := newScene()
	_, first := s.connect(3)
	never, cancel := context.WithCancel(t.Context())
	cancel()
	if s.a.Leave(never) || first.leaves != 1 {
		t.Fatalf("the first scheduler was told %d times, want 1, and has confirmed nothing", first.leaves)
	}
	s.a.end(t.Context(), first)
	_, second := s.connect(4)
	if second.leaves != 1 {
		t.Errorf("the second scheduler was told %d times, want 1", second.leaves)
	}
	s.a.forgotten()
	if !s.a.Leave(t.Context()) {
		t.Error("the leave is not confirmed")
	}
	if _, ok := s.a.deps.Batches.Hello(5); ok {
		t.Error("a session begins after the worker was forgotten: the record would name it again")
	}
}
