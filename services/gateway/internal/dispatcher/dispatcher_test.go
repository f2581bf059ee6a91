package dispatcher

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/schedule"
	"github.com/nereid-serving/nereid/services/gateway/internal/requests"
)

// scene is a dispatcher between a table and schedulers, both of the test.
type scene struct {
	*testing.T
	table *requests.Table
	d     *Dispatcher
}

func newScene(t *testing.T, table *requests.Table, pool string) *scene {
	s := &scene{T: t, table: table}
	s.d = New(Deps{
		Pool:   table.NewPool(pool, requests.DefaultBounds(), mono.New(), nil),
		Finder: control.NewFinder(nil, control.PoolRole(pool)), Metrics: prometheus.NewRegistry(), Log: zap.NewNop(),
	})
	return s
}

// Receive takes a response for a client.
func (s *scene) Receive(r *infer.Response) (last bool) {
	defer r.Release()
	return r.Final
}

// request is a request that the table has.
func (s *scene) request(number uint64) *infer.Request {
	r := &infer.Request{Work: infer.Work{Request: infer.RequestID{Origin: 1, Number: number}, Attempt: 1}, Pool: s.d.deps.Pool.Name()}
	s.table.Open(r.Work, &r.Model, s)
	return r
}

// session is a scheduler's as the dispatcher sees it.
type session struct {
	sent      []uint32 // attempts
	cancelled int
	done      chan struct{}
	epoch     uint64
}

func (x *session) Submit(r *infer.Request) error {
	x.sent = append(x.sent, r.Work.Attempt)
	return nil
}
func (x *session) Cancel(infer.RequestID)          { x.cancelled++ }
func (x *session) CacheUsed(infer.CacheUse)        {}
func (x *session) EnsembleEnded(infer.EnsembleEnd) {}
func (x *session) Close()                          {}
func (x *session) Done() <-chan struct{}           { return x.done }
func (x *session) Err() error                      { return errs.New(errs.NoWorker, "killed") }
func (x *session) Scheduler() schedule.Scheduler {
	return schedule.Scheduler{ID: "s", Epoch: x.epoch}
}

// connect begins a session.
func (s *scene) connect() *session {
	x := &session{epoch: s.d.floor + 1}
	s.d.begin(s.Context(), x)
	return x
}

// A scheduler that holds the pool again under an epoch before that of another
// which the gateway has met gets no requests: they may have run since.
func TestSchedulerThatWasReplacedGetsNoRequests(t *testing.T) {
	s := newScene(t, requests.New(1), "default")
	var told []uint64
	ended := make(chan struct{})
	close(ended)
	old := &session{epoch: 3, done: ended}
	s.d.deps.Dial = func(_ context.Context, _ string, met uint64, _ schedule.GatewayHandler) (Session, error) {
		told = append(told, met)
		return old, nil
	}
	meet := func(epoch uint64) error {
		return s.d.meet(t.Context(), t.Context(), control.Holder{ID: "s", Epoch: epoch})
	}
	if err := s.d.deps.Pool.Submit(s.request(1)); err != nil {
		t.Fatal(err)
	}
	if err := meet(5); errs.Of(err) != errs.PeerUnreachable { // its address is another's by now
		t.Errorf("the scheduler of epoch 3 is met as that of epoch 5: %v", err)
	}
	if err := meet(3); errs.Of(err) != errs.PeerUnreachable || len(old.sent) != 0 {
		t.Errorf("the scheduler of epoch 3 gets %v after that of epoch 5, %v", old.sent, err)
	}
	old.epoch = 7
	if err := meet(7); err != nil || len(old.sent) != 1 {
		t.Errorf("the next one gets %v, %v", old.sent, err)
	}
	if diff := cmp.Diff([]uint64{5, 5, 7}, told); diff != "" {
		t.Errorf("epochs that schedulers were told (-want +got):\n%s", diff)
	}
}

// TestSessionOfAGatewayThatStops is over without a warning.
func TestSessionOfAGatewayThatStops(t *testing.T) {
	core, warnings := observer.New(zap.WarnLevel)
	s := newScene(t, requests.New(1), "default")
	s.d.deps.Log = zap.New(core)
	stopped, stop := context.WithCancel(t.Context())
	stop()
	s.d.end(stopped, s.connect())
	if warnings.Len() != 0 {
		t.Errorf("a warning of the session of a gateway that stops: %v", warnings.All())
	}
	s.d.end(t.Context(), s.connect())
	if warnings.Len() != 1 {
		t.Errorf("%d warnings of a lost session, want 1", warnings.Len())
	}
}
