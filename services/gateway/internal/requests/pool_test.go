package requests

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// scene is a table between clients and the schedulers of a pool; the test plays both.
type scene struct {
	*testing.T
	table   *Table
	pool    *Pool
	now     mono.Time
	free    int // requests whose inputs have been released
	lent    int // requests whose inputs are exported
	answers []string
	session *session
}

func (s *scene) Now() mono.Time { return s.now }

func (s *scene) Receive(r *infer.Response) (last bool) {
	text := "result"
	if r.Err != nil {
		text = string(errs.Of(r.Err))
	}
	if r.Work.Attempt != 1 {
		s.Errorf("answered as attempt %d, which the client's side does not know", r.Work.Attempt)
	}
	s.answers = append(s.answers, text)
	last = r.Final
	r.Release()
	return last
}

func newScene(t *testing.T) *scene {
	s := &scene{T: t, table: New(1), now: 1}
	s.table.OnRefusal(s.table.Cancel)
	s.pool = s.of("default", DefaultBounds())
	return s
}

// of is a pool of the table.
func (s *scene) of(name string, b Bounds) *Pool {
	return s.table.NewPool(name, b, s, func(inputs []infer.Tensor, holder uint64) ([]infer.Tensor, func()) {
		if holder != 1 {
			s.Errorf("inputs are lent by %d, want by the gateway", holder)
		}
		s.lent++
		named := append([]infer.Tensor(nil), inputs...)
		for i := range named {
			named[i].Data = tensor.Ref{Place: tensor.Remote, Holder: holder, Length: inputs[i].Data.Length}
		}
		return named, func() { s.lent-- }
	})
}

// session is a session with a scheduler as the pool sees it.
type session struct {
	*Pool
	scene     *scene
	during    func()   // is called while a request is submitted
	sent      []uint32 // attempts
	order     []uint64 // their requests
	cancelled int
	err       error
	done      chan struct{}
}

func (x *session) Submit(r *infer.Request) error {
	if x.during != nil {
		x.during()
	}
	for i := range r.Inputs {
		if r.Inputs[i].Data.Place != tensor.Remote {
			x.scene.Error("an input is not named")
		}
	}
	if x.err == nil {
		x.sent, x.order = append(x.sent, r.Work.Attempt), append(x.order, r.Work.Request.Number)
	}
	return x.err
}
func (x *session) CacheUsed(infer.CacheUse)        {}
func (x *session) EnsembleEnded(infer.EnsembleEnd) {}
func (x *session) Cancel(infer.RequestID)          { x.cancelled++ }
func (x *session) Done() <-chan struct{}           { return x.done }

// connect starts a session with the pool's next scheduler.
func (s *scene) connect() *session {
	s.session = &session{Pool: s.pool, scene: s}
	s.begin(s.session)
	return s.session
}

func (s *scene) begin(x *session) {
	s.pool.Expect()
	s.pool.Begin(s.Context(), x, s.pool.epoch+1)
}

func (s *scene) request(sequence uint64) *infer.Request {
	b := tensor.Wrap(make([]byte, 4), false, func(*tensor.Buffer) { s.free++ })
	return &infer.Request{
		Work: infer.Work{Request: infer.RequestID{Origin: 1, Number: 1}, Attempt: 1}, Sequence: infer.Sequence{ID: sequence},
		Inputs: []infer.Tensor{{Data: tensor.InBuffer(b, 0, 4)}},
	}
}

// admit enters a request.
func (s *scene) admit(r *infer.Request) *infer.Request {
	s.table.Open(r.Work, &r.Model, s)
	return r
}

func (s *scene) submit(r *infer.Request) {
	s.Helper()
	if err := s.pool.Submit(s.admit(r)); err != nil {
		s.Fatal(err)
	}
}

// giveUp plays a client that disconnects.
func (s *scene) giveUp(number uint64) {
	w := work(1)
	w.Request.Number = number
	if s.table.Finish(infer.Fail(w, errs.New(errs.Canceled, ""))) {
		s.table.Cancel(w.Request)
	}
}

// known returns the number of entries in the table.
func (s *scene) known() int { return len(s.table.all()) }

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
	s.connect()
	s.submit(s.request(0))
	s.pool.End()
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
		"a result of the present attempt": {func(s *scene) { s.table.Respond(result(2)) }, []string{"result"}},
		"a result of the first attempt":   {func(s *scene) { s.table.Respond(result(1)) }, []string{"result"}},
		"only one result": {func(s *scene) {
			s.table.Respond(result(1))
			s.table.Respond(result(2))
		}, []string{"result"}},
		"no failure of an earlier attempt": {func(s *scene) {
			s.table.Respond(failure(1, errs.DeadlineQueue))
			s.table.Respond(result(2))
		}, []string{"result"}},
		"a failure of an earlier attempt that is the one that ran": {func(s *scene) {
			s.table.Respond(failure(1, errs.ExecutionFailed))
			s.session.Refused(work(2), errs.New(errs.RequestUnderway, ""))
		}, []string{"execution_failed"}},
		"the same in the other order": {func(s *scene) {
			s.session.Refused(work(2), errs.New(errs.RequestUnderway, ""))
			s.table.Respond(failure(1, errs.ExecutionFailed))
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
			s.pool.EndOverdue(false)
		}, nil},
		"for a while": {func(s *scene) {
			s.session.Refused(work(2), errs.New(errs.RequestFinished, ""))
			s.now = s.now.Add(DefaultBounds().Grace)
			s.pool.EndOverdue(false)
		}, []string{"instance_crashed"}},
		"what a worker that is gone had answered": {func(s *scene) {
			s.session.Placed(work(2), 7)
			s.table.Lost(7)
			s.now = s.now.Add(DefaultBounds().Grace)
			s.pool.EndOverdue(false)
		}, []string{"instance_crashed"}},
		"what one had answered of which it is heard later that it ran there": {func(s *scene) {
			s.table.Lost(7)
			s.session.Placed(work(2), 7)
			s.now = s.now.Add(DefaultBounds().Grace)
			s.pool.EndOverdue(false)
		}, []string{"instance_crashed"}},
		"unless the worker is back": {func(s *scene) {
			s.table.Lost(7)
			s.table.Back(7)
			s.session.Placed(work(2), 7)
			s.now = s.now.Add(DefaultBounds().Grace)
			s.pool.EndOverdue(false)
		}, nil},
		"unless it runs elsewhere by then": {func(s *scene) {
			s.session.Placed(work(2), 7)
			s.table.Lost(7)
			s.table.Back(8)
			s.session.Placed(work(2), 8)
			s.now = s.now.Add(DefaultBounds().Grace)
			s.pool.EndOverdue(false)
		}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := failover(t)
			tt.tell(s)
			if diff := cmp.Diff(tt.want, s.answers); diff != "" {
				t.Error(diff)
			}
			if s.free != len(tt.want) || s.known() != 1-len(tt.want) || s.lent != s.known() {
				t.Errorf("%d requests released, %d known, %d answered", s.free, s.known(), len(tt.want))
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
	s.pool.bounds.MaxRequests = 1
	s.submit(s.request(0))
	other := s.request(0)
	other.Work.Request.Number = 2
	if err := s.pool.Submit(s.admit(other)); errs.Of(err) != errs.NoScheduler {
		t.Errorf("beyond the bound: %v", err)
	}
	s.now = s.now.Add(DefaultBounds().Wait)
	s.pool.EndOverdue(false)
	if diff := cmp.Diff([]string{"no_scheduler"}, s.answers); diff != "" {
		t.Error(diff)
	}
}

// A scheduler fails with requests of a sequence: the next one gets them in order, before any new ones.
func TestNothingOvertakesWhatIsSubmittedAgain(t *testing.T) {
	s := newScene(t)
	number := func(n uint64) *infer.Request {
		r := s.request(5)
		r.Work.Request.Number = n
		return r
	}
	s.connect()
	for n := range uint64(3) {
		s.submit(number(n + 1))
	}
	s.pool.End()
	s.submit(number(4))
	second := &session{Pool: s.pool, scene: s}
	second.during = func() {
		if n := uint64(5 + len(second.order)); n < 8 {
			s.submit(number(n))
		}
	}
	s.begin(second)
	s.submit(number(8))
	if diff := cmp.Diff([]uint64{1, 2, 3, 4, 5, 6, 7, 8}, second.order); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]uint32{2, 2, 2, 1, 1, 1, 1, 1}, second.sent); diff != "" || len(s.answers) > 0 || s.pool.Waiting() > 0 {
		t.Errorf("attempts: %s\nanswers: %v; %d wait", diff, s.answers, s.pool.Waiting())
	}
}

// A request of a sequence was given up or has failed, which the next scheduler does not know: the later
// requests of the sequence, up to the next start, are not submitted to it.
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
	s.giveUp(2)
	failed := failure(1, errs.SequenceLost)
	failed.Work.Request.Number = 6
	first.Response(failed, false)
	s.pool.End()
	if diff := cmp.Diff([]uint64{1, 4, 5, 8}, s.connect().order); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"cancelled", "sequence_lost", "sequence_lost", "sequence_lost"}, s.answers); diff != "" {
		t.Error(diff)
	}
	if len(s.pool.sequences) != 1 {
		t.Errorf("it knows the sequences %v", s.pool.sequences)
	}
}

func TestWhatIsGivenBackWaitsForTheNextScheduler(t *testing.T) {
	for _, reason := range []errs.Reason{errs.SchedulerDeposed, errs.Draining} {
		s := newScene(t)
		first := s.connect()
		s.submit(s.request(0))
		first.Draining()
		first.Response(failure(1, reason), false)
		s.pool.End()
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
	if len(first.sent) != 0 || s.pool.Waiting() != 1 {
		t.Errorf("%v submitted, %d wait", first.sent, s.pool.Waiting())
	}
}

func TestCancelledRequestIsNotSubmittedAgain(t *testing.T) {
	s := newScene(t)
	first := s.connect()
	s.submit(s.request(0))
	s.giveUp(1)
	if first.cancelled != 1 || s.free != 0 {
		t.Errorf("%d cancellations sent, %d released: a worker may read the inputs still", first.cancelled, s.free)
	}
	s.pool.End()
	if second := s.connect(); len(second.sent) != 0 || s.free != 1 {
		t.Errorf("submitted %v, %d released", second.sent, s.free)
	}
}

// The scheduler has workers cancel requests at their deadline, and its own report of that can be lost.
func TestWhatAWorkerCancelsForItsDeadlineIsOverdue(t *testing.T) {
	for deadline, want := range map[mono.Time]string{0: "cancelled", 1: "deadline_compute"} {
		s := newScene(t)
		s.connect()
		r := s.request(0)
		r.Deadline = deadline
		s.submit(r)
		s.table.Respond(failure(1, errs.Canceled))
		if diff := cmp.Diff([]string{want}, s.answers); diff != "" {
			t.Errorf("deadline %d: %s", deadline, diff)
		}
	}
}

func TestRefusedSubmissionStaysTheCallers(t *testing.T) {
	s := newScene(t)
	s.connect().err = errs.New(errs.QueueFull, "")
	if err := s.pool.Submit(s.admit(s.request(0))); errs.Of(err) != errs.QueueFull || s.free != 0 || s.known() != 1 || s.lent != 0 {
		t.Errorf("%v, %d released, %d known, %d lent", err, s.free, s.known(), s.lent)
	}
}

// A request that ends while it is passed to a session keeps its inputs until the session has read them, and
// none of its inputs stays exported.
func TestInputsOutliveTheirSubmission(t *testing.T) {
	for name, end := range map[string]func(*scene){
		"an answer to an earlier attempt": func(s *scene) { s.table.Respond(result(1)) },
		"the end of the gateway":          func(s *scene) { s.pool.EndOverdue(true) },
		"a cancellation beside a lost session": func(s *scene) {
			s.giveUp(1)
			s.pool.End()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, ended := newScene(t), make(chan struct{})
			s.connect().during = func() {
				go func() {
					end(s)
					close(ended)
				}()
				select {
				case <-ended:
					t.Error("it has ended while its inputs were read")
				case <-time.After(10 * time.Millisecond):
				}
			}
			s.submit(s.request(0))
			<-ended
			if s.free != 1 || s.lent != 0 || s.known() != 0 {
				t.Errorf("%d requests released, %d lent, %d known", s.free, s.lent, s.known())
			}
		})
	}
}

// A session may end while requests wait for its credit: they then wait for the next one.
func TestSessionThatEndsWithoutRoom(t *testing.T) {
	s := newScene(t)
	s.submit(s.request(0))
	full := &session{Pool: s.pool, scene: s, err: errs.New(errs.QueueFull, ""), done: make(chan struct{})}
	full.during = sync.OnceFunc(func() { close(full.done) })
	s.begin(full)
	s.pool.End()
	if next := s.connect(); len(next.sent) != 1 || len(s.answers) != 0 {
		t.Errorf("submitted as %v, answered %v", next.sent, s.answers)
	}
}

// What a scheduler reports before requests are submitted to it is not overlooked.
func TestDrainBeforeTheFirstRequest(t *testing.T) {
	s := newScene(t)
	s.pool.Expect()
	s.pool.Draining()
	s.session = &session{Pool: s.pool, scene: s}
	s.pool.Begin(t.Context(), s.session, 1)
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

// A pool counts as reachable while a takeover may be in progress, and no longer.
func TestPoolIsReachableWhileATakeoverMayBeUnderWay(t *testing.T) {
	s := newScene(t)
	if s.pool.Reachable() {
		t.Error("before the first session")
	}
	s.connect()
	s.now = s.now.Add(DefaultBounds().Wait)
	if !s.pool.Reachable() {
		t.Error("not while there is a session")
	}
	s.pool.End()
	s.now = s.now.Add(DefaultBounds().Wait/2 - 1)
	if !s.pool.Reachable() {
		t.Error("not while another scheduler may take over")
	}
	s.now++
	if s.pool.Reachable() {
		t.Error("after a takeover would have been over")
	}
	s.connect()
	if !s.pool.Reachable() {
		t.Error("not with the next scheduler")
	}
}

// A model's call ends, once, with the scheduler that has it, because what that knew about the parent is lost.
func TestCallsAreNotSubmittedAgain(t *testing.T) {
	for name, part := range map[string]func(*scene, *session, infer.Work){
		"the session ends":            func(s *scene, _ *session, _ infer.Work) { s.pool.End() },
		"the scheduler gives it back": func(_ *scene, x *session, w infer.Work) { x.Refused(w, errs.New(errs.SchedulerDeposed, "")) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			r := s.request(0)
			r.Parent.Batch.Number = 1
			first := s.connect()
			s.submit(r)
			part(s, first, work(1))
			if second := s.connect(); len(first.sent) != 1 || len(second.sent) != 0 {
				t.Errorf("submitted %d times, and then %d", len(first.sent), len(second.sent))
			}
			if diff := cmp.Diff([]string{string(errs.NoScheduler)}, s.answers); diff != "" || s.free != 1 || s.lent != 0 || s.known() != 0 {
				t.Errorf("%d inputs free, %d lent, %d requests known; (-want +got):\n%s", s.free, s.lent, s.known(), diff)
			}
		})
	}
}

// A model's call that arrives while there is no scheduler waits like any request.
func TestCallsWaitForTheirFirstScheduler(t *testing.T) {
	s := newScene(t)
	r := s.request(0)
	r.Parent.Batch.Number = 1
	s.submit(r)
	if x := s.connect(); len(x.sent) != 1 || len(s.answers) != 0 {
		t.Errorf("submitted %d times, answered with %v", len(x.sent), s.answers)
	}
}

// TestAdoptedRequestEndsWithItsWorker loses the answer of a request that the previous scheduler had dispatched:
// its gateway learns which worker runs it before or after that worker is lost.
func TestAdoptedRequestEndsWithItsWorker(t *testing.T) {
	for name, steps := range map[string][]func(*scene){
		"that is lost later": {func(s *scene) { s.pool.Placed(work(2), 9) }, func(s *scene) { s.table.Lost(9) }},
		"that was lost":      {func(s *scene) { s.table.Lost(9) }, func(s *scene) { s.pool.Placed(work(2), 9) }},
	} {
		t.Run(name, func(t *testing.T) {
			s := failover(t)
			s.table.Back(9)
			s.pool.Response(failure(2, errs.RequestUnderway), false)
			for _, step := range steps {
				step(s)
			}
			s.now = s.now.Add(s.pool.bounds.Grace)
			s.pool.EndOverdue(false)
			if s.known() != 0 {
				t.Error("the request has not ended")
			}
		})
	}
}

// TestRequestsEndWithoutTheirAnswer places requests on a worker whose answer never arrives: neither a deadline
// nor a scheduler ends them.
func TestRequestsEndWithoutTheirAnswer(t *testing.T) {
	const worker = 9
	placed := func(s *scene) { s.pool.Placed(work(2), worker) }
	there := func(s *scene) { s.table.Back(worker) }
	lost := func(s *scene) { s.table.Lost(worker) }
	underway := func(s *scene) { s.pool.Response(failure(2, errs.RequestUnderway), false) }
	pass := func(d time.Duration) func(*scene) { return func(s *scene) { s.now = s.now.Add(d) } }
	// dropped says how long before now the worker dropped answers.
	dropped := func(ago time.Duration) func(*scene) {
		return func(s *scene) { s.table.Dropped(worker, s.now.Add(-ago)) }
	}
	resubmit := func(s *scene) { // as attempt 3
		s.pool.End()
		s.connect()
	}
	again := func(s *scene) { s.pool.Placed(work(3), worker) }
	for name, c := range map[string]struct {
		steps []func(*scene)
		ends  bool
	}{
		"the worker is there":                                 {[]func(*scene){there, placed}, false},
		"the gateway never knew of the worker":                {[]func(*scene){placed}, true},
		"the gateway hears of the worker later":               {[]func(*scene){placed, pass(time.Second), there}, false},
		"the worker was lost long ago":                        {[]func(*scene){there, lost, pass(time.Hour), placed}, true},
		"the worker was lost, and is back":                    {[]func(*scene){there, placed, lost, there}, false},
		"the worker dropped answers after it":                 {[]func(*scene){there, placed, pass(time.Minute), dropped(time.Second)}, true},
		"the worker dropped answers after it, as heard later": {[]func(*scene){there, pass(time.Minute), dropped(time.Second), placed}, true},
		"the worker had dropped answers before":               {[]func(*scene){there, pass(time.Minute), resubmit, again, dropped(time.Second)}, false},
		"an attempt from before runs there": {[]func(*scene){there, pass(time.Minute), resubmit, func(s *scene) {
			s.pool.Response(failure(3, errs.RequestUnderway), false)
		}, again, dropped(time.Second)}, true},
		"the scheduler says that it runs there":                         {[]func(*scene){there, underway, placed}, false},
		"the scheduler says that it runs on a worker that nobody knows": {[]func(*scene){underway, placed}, true},
		"it is submitted again, and placed where the worker is there":   {[]func(*scene){placed, resubmit, there, again}, false},
		"it has been answered by a worker that is back":                 {[]func(*scene){there, placed, finish, lost, there}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := failover(t)
			for _, step := range c.steps {
				step(s)
			}
			s.now = s.now.Add(s.pool.bounds.Grace - 1)
			s.pool.EndOverdue(false)
			if s.known() != 1 {
				t.Error("it has ended early")
			}
			s.now = s.now.Add(1)
			s.pool.EndOverdue(false)
			if ended := s.known() == 0; ended != c.ends {
				t.Errorf("it has ended: %t", ended)
			}
			if n := s.pool.ending.Load(); n != 0 {
				t.Errorf("%d requests are to be given up, and none is left that is", n)
			}
		})
	}
}

func finish(s *scene) { s.pool.Response(failure(2, errs.RequestFinished), false) }

// An answer that started arriving in time is waited for, however long it takes. An answer of another worker
// does not count.
func TestLargeAnswersAreWaitedFor(t *testing.T) {
	s := failover(t)
	s.table.Back(9)
	s.pool.Placed(work(2), 9)
	finish(s)
	began := s.now.Add(time.Second)
	s.table.OnOverdue(func(worker uint64, since mono.Time) bool { return worker == 9 && began <= since })
	s.now = s.now.Add(time.Minute)
	s.pool.EndOverdue(false)
	if s.known() != 1 {
		t.Fatal("a request was given up whose answer was arriving")
	}
	began = s.now // the next one's
	s.pool.EndOverdue(false)
	if diff := cmp.Diff([]string{string(errs.InstanceCrashed)}, s.answers); diff != "" || s.known() != 0 {
		t.Errorf("%d requests known; (-want +got):\n%s", s.known(), diff)
	}
}
