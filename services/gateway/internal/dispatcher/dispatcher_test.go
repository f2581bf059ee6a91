package dispatcher

import (
	"context"
	"sync"
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
	"github.com/nereid-serving/nereid/libs/tensor"
)

// scene is a dispatcher between a gateway and schedulers, both of the test.
type scene struct {
	t       *testing.T
	d       *Dispatcher
	now     mono.Time
	free    int // requests whose inputs are released
	offered int // submissions less what was forgotten since
	answers []string
	session *session
}

func (s *scene) Now() mono.Time { return s.now }

func (s *scene) Respond(r *infer.Response) {
	text := "result"
	if r.Err != nil {
		text = string(errs.Of(r.Err))
	}
	if r.Work.Attempt != 1 {
		s.t.Errorf("answered as attempt %d, which the gateway does not know", r.Work.Attempt)
	}
	s.answers = append(s.answers, text)
	r.Release()
}

func newScene(t *testing.T) *scene {
	s := &scene{t: t, now: 1}
	s.d = New(Default(), Deps{
		Finder: control.NewFinder(nil, control.PoolRole("default")), To: s, Clock: s, Metrics: prometheus.NewRegistry(), Log: zap.NewNop(),
		Forget: func(infer.RequestID) { s.offered = 0 },
	})
	return s
}

// session is a scheduler's as the dispatcher sees it.
type session struct {
	handler
	scene     *scene
	during    func()   // is called while a request is submitted
	sent      []uint32 // attempts
	order     []uint64 // their requests
	cancelled int
	err       error
	done      chan struct{}
	epoch     uint64
}

func (x *session) Submit(r *infer.Request) error {
	if x.during != nil {
		x.during()
	}
	x.scene.offered++
	if x.err == nil {
		x.sent, x.order = append(x.sent, r.Work.Attempt), append(x.order, r.Work.Request.Number)
	}
	return x.err
}
func (x *session) Cancel(infer.RequestID) { x.cancelled++ }
func (x *session) Close()                 {}
func (x *session) Done() <-chan struct{}  { return x.done }
func (x *session) Err() error             { return errs.New(errs.NoWorker, "killed") }
func (x *session) Scheduler() schedule.Scheduler {
	return schedule.Scheduler{ID: "s", Epoch: x.epoch}
}

// connect begins a session with the next scheduler.
func (s *scene) connect() *session {
	s.d.life++
	s.session = &session{handler: handler{s.d, s.d.life}, scene: s, epoch: s.d.life}
	s.d.begin(context.Background(), s.session)
	return s.session
}

func (s *scene) request(sequence uint64) *infer.Request {
	b := tensor.Wrap(make([]byte, 4), false, func(*tensor.Buffer) { s.free++ })
	return &infer.Request{
		Work: infer.Work{Request: infer.RequestID{Origin: 1, Number: 1}, Attempt: 1}, Sequence: infer.Sequence{ID: sequence},
		Inputs: []infer.Tensor{{Data: tensor.InBuffer(b, 0, 4)}},
	}
}

func (s *scene) submit(r *infer.Request) {
	s.t.Helper()
	if err := s.d.Submit(r); err != nil {
		s.t.Fatal(err)
	}
}

func work(attempt uint32) infer.Work {
	return infer.Work{Request: infer.RequestID{Origin: 1, Number: 1}, Attempt: attempt}
}

func result(attempt uint32) *infer.Response { return &infer.Response{Work: work(attempt), Final: true} }

func failure(attempt uint32, reason errs.Reason) *infer.Response {
	return infer.Fail(work(attempt), errs.New(reason, ""))
}

// fail over: a request was submitted, its scheduler died, and the next one has
// it as attempt 2.
func failover(t *testing.T) *scene {
	s := newScene(t)
	first := s.connect()
	s.submit(s.request(0))
	s.d.end(t.Context(), first)
	second := s.connect()
	if diff := cmp.Diff([]uint32{2}, second.sent); diff != "" {
		t.Fatal(diff)
	}
	return s
}

func TestWhichAnswersCount(t *testing.T) {
	tests := map[string]struct {
		tell func(*scene)
		want []string
	}{
		"a result of the present attempt": {func(s *scene) { s.d.Respond(result(2)) }, []string{"result"}},
		"a result of the first attempt":   {func(s *scene) { s.d.Respond(result(1)) }, []string{"result"}},
		"only one result": {func(s *scene) {
			s.d.Respond(result(1))
			s.d.Respond(result(2))
		}, []string{"result"}},
		"no failure of an earlier attempt": {func(s *scene) {
			s.d.Respond(failure(1, errs.DeadlineQueue))
			s.d.Respond(result(2))
		}, []string{"result"}},
		"a failure of an earlier attempt that is the one that ran": {func(s *scene) {
			s.d.Respond(failure(1, errs.ExecutionFailed))
			s.session.Refused(work(2), errs.New(errs.RequestUnderway, ""))
		}, []string{"execution_failed"}},
		"the same in the other order": {func(s *scene) {
			s.session.Refused(work(2), errs.New(errs.RequestUnderway, ""))
			s.d.Respond(failure(1, errs.ExecutionFailed))
		}, []string{"execution_failed"}},
		"a refusal of the present attempt": {func(s *scene) {
			s.session.Response(failure(2, errs.QueueFull), false)
		}, []string{"queue_full"}},
		"no refusal of an earlier one": {func(s *scene) {
			s.session.Response(failure(1, errs.QueueFull), false)
		}, nil},
		"the loss of the worker that runs it": {func(s *scene) {
			s.session.Refused(work(2), errs.New(errs.RequestUnderway, ""))
			s.session.Response(failure(1, errs.InstanceCrashed), false)
		}, []string{"instance_crashed"}},
		"no answer of one that is told to have finished": {func(s *scene) {
			s.session.Refused(work(2), errs.New(errs.RequestFinished, ""))
			s.d.endOverdue(false)
		}, nil},
		"for a while": {func(s *scene) {
			s.session.Refused(work(2), errs.New(errs.RequestFinished, ""))
			s.now = s.now.Add(Default().Grace)
			s.d.endOverdue(false)
		}, []string{"instance_crashed"}},
		"what a worker that is gone had answered": {func(s *scene) {
			s.session.Placed(work(2), 7)
			s.d.Lost(7)
			s.now = s.now.Add(Default().Grace)
			s.d.endOverdue(false)
		}, []string{"instance_crashed"}},
		"unless it runs elsewhere by then": {func(s *scene) {
			s.session.Placed(work(2), 7)
			s.d.Lost(7)
			s.session.Placed(work(2), 8)
			s.now = s.now.Add(Default().Grace)
			s.d.endOverdue(false)
		}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := failover(t)
			tt.tell(s)
			if diff := cmp.Diff(tt.want, s.answers); diff != "" {
				t.Error(diff)
			}
			if s.free != len(tt.want) || len(s.d.entries) != 1-len(tt.want) {
				t.Errorf("%d requests released, %d known, %d answered", s.free, len(s.d.entries), len(tt.want))
			}
		})
	}
}

func TestRequestsWaitForAScheduler(t *testing.T) {
	s := newScene(t)
	s.submit(s.request(0))
	if x := s.connect(); len(x.sent) != 1 || x.sent[0] != 1 {
		t.Errorf("submitted as %v, want as the first attempt", x.sent)
	}
}

func TestWaitingIsBounded(t *testing.T) {
	s := newScene(t)
	s.d.config.MaxRequests = 1
	s.submit(s.request(0))
	other := s.request(0)
	other.Work.Request.Number = 2
	if err := s.d.Submit(other); errs.Of(err) != errs.NoScheduler {
		t.Errorf("beyond the bound: %v", err)
	}
	s.now = s.now.Add(Default().Patience)
	s.d.endOverdue(false)
	if diff := cmp.Diff([]string{"no_scheduler"}, s.answers); diff != "" {
		t.Error(diff)
	}
}

// A scheduler dies with requests of a sequence: they come to the next one in their
// order, and before those that are new.
func TestNothingOvertakesWhatIsSubmittedAgain(t *testing.T) {
	s := newScene(t)
	number := func(n uint64) *infer.Request {
		r := s.request(5)
		r.Work.Request.Number = n
		return r
	}
	first := s.connect()
	for n := range uint64(3) {
		s.submit(number(n + 1))
	}
	s.d.end(t.Context(), first)
	s.submit(number(4))
	s.d.life++
	second := &session{handler: handler{s.d, s.d.life}, scene: s, epoch: s.d.life}
	second.during = func() {
		if n := uint64(5 + len(second.order)); n < 8 {
			s.submit(number(n))
		}
	}
	s.d.begin(t.Context(), second)
	s.submit(number(8))
	if diff := cmp.Diff([]uint64{1, 2, 3, 4, 5, 6, 7, 8}, second.order); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]uint32{2, 2, 2, 1, 1, 1, 1, 1}, second.sent); diff != "" || len(s.answers) > 0 || s.d.waiting.requests > 0 {
		t.Errorf("attempts: %s\nanswers: %v; %d wait", diff, s.answers, s.d.waiting.requests)
	}
}

// A request of a sequence was given up, or has failed, which the next scheduler does not
// know: what follows in the sequence, up to the next start, does not come to it.
func TestWhatFollowsOnAFailedRequestIsNotSubmittedAgain(t *testing.T) {
	s := newScene(t)
	first := s.connect()
	for n, place := range []infer.Sequence{
		1: {ID: 5, Start: true}, 2: {ID: 5}, 3: {ID: 5}, 4: {ID: 5, Start: true}, 5: {ID: 5}, 6: {Key: "x", Start: true}, 7: {Key: "x"}, 8: {},
	}[1:] {
		r := s.request(0)
		r.Work.Request.Number, r.Sequence = uint64(n+1), place
		s.submit(r)
	}
	s.d.Cancel(infer.RequestID{Origin: 1, Number: 2})
	failed := failure(1, errs.SequenceLost)
	failed.Work.Request.Number = 6
	first.Response(failed, false)
	s.d.end(t.Context(), first)
	if diff := cmp.Diff([]uint64{1, 4, 5, 8}, s.connect().order); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"sequence_lost", "cancelled", "sequence_lost", "sequence_lost"}, s.answers); diff != "" {
		t.Error(diff)
	}
	if len(s.d.sequences) != 1 {
		t.Errorf("it knows the sequences %v", s.d.sequences)
	}
}

func TestWhatIsGivenBackWaitsForTheNextScheduler(t *testing.T) {
	for _, reason := range []errs.Reason{errs.SchedulerDeposed, errs.Draining} {
		s := newScene(t)
		first := s.connect()
		s.submit(s.request(0))
		first.Draining()
		first.Response(failure(1, reason), false)
		s.d.end(t.Context(), first)
		if second := s.connect(); len(second.sent) != 1 || len(s.answers) != 0 {
			t.Errorf("%s: submitted %v, answered %v", reason, second.sent, s.answers)
		}
	}
}

func TestDrainingSchedulerGetsNothingNew(t *testing.T) {
	s := newScene(t)
	first := s.connect()
	first.Draining()
	s.submit(s.request(0))
	if len(first.sent) != 0 || s.d.waiting.requests != 1 {
		t.Errorf("%v submitted, %d wait", first.sent, s.d.waiting.requests)
	}
}

func TestCancelledRequestIsNotSubmittedAgain(t *testing.T) {
	s := newScene(t)
	first := s.connect()
	s.submit(s.request(0))
	s.d.Cancel(work(1).Request)
	if first.cancelled != 1 || s.free != 0 {
		t.Errorf("%d cancellations sent, %d released: a worker may read the inputs still", first.cancelled, s.free)
	}
	s.d.end(t.Context(), first)
	if second := s.connect(); len(second.sent) != 0 || s.free != 1 {
		t.Errorf("submitted %v, %d released", second.sent, s.free)
	}
}

// The scheduler has workers cancel what is over its deadline, and its own word on
// that can be lost.
func TestWhatAWorkerCancelsForItsDeadlineIsOverdue(t *testing.T) {
	for deadline, want := range map[mono.Time]string{0: "cancelled", 1: "deadline_compute"} {
		s := newScene(t)
		s.connect()
		r := s.request(0)
		r.Deadline = deadline
		s.submit(r)
		s.d.Respond(failure(1, errs.Canceled))
		if diff := cmp.Diff([]string{want}, s.answers); diff != "" {
			t.Errorf("deadline %d: %s", deadline, diff)
		}
	}
}

func TestRefusedSubmissionStaysTheCallers(t *testing.T) {
	s := newScene(t)
	s.connect().err = errs.New(errs.QueueFull, "")
	if err := s.d.Submit(s.request(0)); errs.Of(err) != errs.QueueFull || s.free != 0 || len(s.d.entries) != 0 || s.offered != 0 {
		t.Errorf("%v, %d released, %d known, %d offered", err, s.free, len(s.d.entries), s.offered)
	}
}

// A request that ends while it is handed to a session keeps its inputs until
// that has read them, and nothing stays offered of it.
func TestInputsOutliveTheirSubmission(t *testing.T) {
	for name, end := range map[string]func(*scene){
		"an answer to an earlier attempt": func(s *scene) { s.d.Respond(result(1)) },
		"the end of the gateway":          func(s *scene) { s.d.endOverdue(true) },
		"a cancellation beside a lost session": func(s *scene) {
			s.d.Cancel(work(1).Request)
			s.d.end(t.Context(), s.session)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.connect().during = func() {
				if end(s); s.free != 0 {
					t.Error("the inputs were released while they were read")
				}
			}
			s.submit(s.request(0))
			if s.free != 1 || s.offered != 0 || len(s.d.entries) != 0 {
				t.Errorf("%d requests released, %d offered, %d known", s.free, s.offered, len(s.d.entries))
			}
		})
	}
}

// A session may end while requests wait for its credit: they wait for the next.
func TestSessionThatEndsWithoutRoom(t *testing.T) {
	s := newScene(t)
	s.submit(s.request(0))
	s.d.life++
	full := &session{handler: handler{s.d, s.d.life}, scene: s, err: errs.New(errs.QueueFull, ""), done: make(chan struct{})}
	full.during = sync.OnceFunc(func() { close(full.done) })
	s.d.begin(t.Context(), full)
	s.d.end(t.Context(), full)
	if next := s.connect(); len(next.sent) != 1 || len(s.answers) != 0 {
		t.Errorf("submitted as %v, answered %v", next.sent, s.answers)
	}
}

// A scheduler that holds the pool again under an epoch before that of another
// which the gateway has met gets no requests: they may have run since.
func TestSchedulerThatWasReplacedGetsNoRequests(t *testing.T) {
	s := newScene(t)
	var told []uint64
	ended := make(chan struct{})
	close(ended)
	old := &session{scene: s, epoch: 3, done: ended}
	s.d.deps.Dial = func(_ context.Context, _ string, met uint64, _ schedule.GatewayHandler) (Session, error) {
		told = append(told, met)
		return old, nil
	}
	meet := func(epoch uint64) error {
		return s.d.meet(t.Context(), t.Context(), control.Holder{ID: "s", Epoch: epoch})
	}
	s.submit(s.request(0))
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

// What a scheduler says before requests are submitted to it is not overlooked.
func TestDrainBeforeTheFirstRequest(t *testing.T) {
	s := newScene(t)
	handler{s.d, s.d.life + 1}.Draining()
	s.connect()
	if s.submit(s.request(0)); len(s.session.sent) != 0 {
		t.Errorf("%v submitted to a scheduler that drains", s.session.sent)
	}
}

func TestReturnedRequestGoesToTheGateway(t *testing.T) {
	s := newScene(t)
	x := s.connect()
	s.submit(s.request(0))
	x.Response(failure(1, errs.ModelNotReady), true)
	if diff := cmp.Diff([]string{"model_not_ready"}, s.answers); diff != "" || s.free != 1 {
		t.Error(diff, s.free)
	}
}

// TestSessionOfAGatewayThatStops is over without a warning.
func TestSessionOfAGatewayThatStops(t *testing.T) {
	core, warnings := observer.New(zap.WarnLevel)
	s := newScene(t)
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

// A pool counts as reached while a takeover may be under way, and no longer.
func TestPoolIsReachableWhileATakeoverMayBeUnderWay(t *testing.T) {
	s := newScene(t)
	if s.d.Reachable() {
		t.Error("before the first session")
	}
	first := s.connect()
	s.now = s.now.Add(Default().Patience)
	if !s.d.Reachable() {
		t.Error("not while there is a session")
	}
	s.d.end(t.Context(), first)
	s.now = s.now.Add(Default().Patience/2 - 1)
	if !s.d.Reachable() {
		t.Error("not while another scheduler may take over")
	}
	s.now++
	if s.d.Reachable() {
		t.Error("after a takeover would have been over")
	}
	s.connect()
	if !s.d.Reachable() {
		t.Error("not with the next scheduler")
	}
}
