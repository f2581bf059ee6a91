package dispatch_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/scheduler/core"
	"github.com/nereid-serving/nereid/services/scheduler/internal/dispatch"
	"github.com/nereid-serving/nereid/services/scheduler/internal/stats"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	model = infer.ModelRef{Name: "m", Version: 1, Generation: 1}
	slot0 = infer.InstanceID{Worker: 5}
)

// answers keeps the final answers by request number.
type answers struct {
	mu    sync.Mutex
	final map[uint64][]error
	came  chan uint64
}

func newAnswers() *answers {
	return &answers{final: map[uint64][]error{}, came: make(chan uint64, 1<<16)}
}

func (a *answers) Respond(r *infer.Response) {
	if r.Err != nil && !r.Immediate {
		panic("an answer of the scheduler's own that waits for those of models")
	}
	a.mu.Lock()
	a.final[r.Work.Request.Number] = append(a.final[r.Work.Request.Number], r.Err)
	a.mu.Unlock()
	r.Release()
	a.came <- r.Work.Request.Number
}

func (a *answers) of(n uint64) []error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.final[n]
}

// worker answers and completes orders on a goroutine, or keeps them.
type worker struct {
	loop      *dispatch.Loop
	responder infer.Responder
	orders    chan *infer.Batch
	cancelled chan infer.RequestID
	retired   chan infer.InstanceID
}

func newWorker(l *dispatch.Loop, r infer.Responder) *worker {
	return &worker{
		loop: l, responder: r, orders: make(chan *infer.Batch, 100),
		cancelled: make(chan infer.RequestID, 100), retired: make(chan infer.InstanceID, 100),
	}
}

func (w *worker) Execute(o *infer.Batch)                     { w.orders <- o }
func (w *worker) Cancel(_ infer.BatchID, id infer.RequestID) { w.cancelled <- id }
func (w *worker) Retired(id infer.InstanceID)                { w.retired <- id }

// finish answers and completes one order.
func (w *worker) finish(o *infer.Batch) {
	done := &infer.InstanceFree{Batch: o.ID, Instance: o.Instance, Executions: 1, Credits: 1}
	for _, r := range o.Requests {
		done.BatchSize += r.BatchSize
		done.Outcomes = append(done.Outcomes, infer.Succeeded)
		work := r.Work
		r.Release()
		w.responder.Respond(&infer.Response{Work: work, Final: true})
	}
	w.loop.InstanceFree(done)
}

// store holds at once what it is asked to.
type store struct {
	loop   *dispatch.Loop
	asked  chan struct{}
	placed chan uint64 // workers
}

func (s *store) Record(version uint64, _ core.History) {
	s.loop.Recorded(version)
	s.asked <- struct{}{}
}

func (s *store) Gone(uint64, bool) {}

func (s *store) Placed(_ infer.Work, worker uint64) { s.placed <- worker }

// start runs a loop with one model and one worker, whose instance is free.
func start(t testing.TB, a infer.Responder) (*dispatch.Loop, *worker, *stats.Set) {
	l, w, set := startModel(t, a, &modelconfig.Config{Name: "m", MaxBatchSize: 8, Batching: &modelconfig.DynamicBatching{}})
	l.Grant(infer.Grant{Instance: slot0, Model: model, Credits: 1})
	return l, w, set
}

// startModel runs a loop with one model and a worker without an instance.
func startModel(t testing.TB, a infer.Responder, c *modelconfig.Config) (*dispatch.Loop, *worker, *stats.Set) {
	return startLimited(t, a, core.Config{}, c)
}

func startLimited(t testing.TB, a infer.Responder, limits core.Config, c *modelconfig.Config) (*dispatch.Loop, *worker, *stats.Set) {
	set := stats.NewSet(stats.DefaultLatencies())
	store := &store{asked: make(chan struct{}, 100), placed: make(chan uint64, 100)}
	l, err := dispatch.New(limits, dispatch.Deps{Clock: mono.New(), Responder: a, Stats: set, Members: store})
	store.loop = l
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- l.Run(ctx) }()
	l.BecomeLeader(9, core.History{}, 0)
	t.Cleanup(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	w := newWorker(l, a)
	l.Configure(model, c)
	l.Attach(slot0.Worker, infer.Held{}, w)
	<-store.asked
	l.Queues() // by when the store holds the worker
	return l, w, set
}

// request makes a request whose release is counted.
func request(n uint64, released *counter) *infer.Request {
	b := tensor.Wrap(make([]byte, 4), false, func(*tensor.Buffer) { released.add() })
	return &infer.Request{
		Work: infer.Work{Request: infer.RequestID{Origin: 1, Number: n}, Attempt: 1}, Model: model, BatchSize: 1,
		Inputs: []infer.Tensor{{Name: "x", Data: tensor.InBuffer(b, 0, 4)}},
	}
}

type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) add() { c.mu.Lock(); c.n++; c.mu.Unlock() }

func (c *counter) value() int { c.mu.Lock(); defer c.mu.Unlock(); return c.n }

func TestEveryRequestIsAnsweredOnceUnderConcurrentPosters(t *testing.T) {
	const posters, each = 8, 500
	a, released := newAnswers(), &counter{}
	l, w, set := start(t, a)
	stop := make(chan struct{})
	var working sync.WaitGroup
	working.Go(func() {
		for {
			select {
			case o := <-w.orders:
				w.finish(o)
			case <-stop:
				return
			}
		}
	})
	for p := range posters {
		working.Go(func() {
			for i := range each {
				n := uint64(p*each + i + 1)
				if err := l.Submit(request(n, released)); err != nil {
					t.Errorf("submit %d: %v", n, err)
				}
				if i%7 == 0 {
					l.Cancel(infer.RequestID{Origin: 1, Number: n})
				}
			}
		})
	}
	for range posters * each {
		<-a.came
	}
	close(stop)
	working.Wait()
	for n := uint64(1); n <= posters*each; n++ {
		if got := a.of(n); len(got) != 1 {
			t.Fatalf("request %d has %d final answers", n, len(got))
		}
	}
	if got := released.value(); got != posters*each {
		t.Errorf("%d inputs released, want %d", got, posters*each)
	}
	if pending := pendingOf(t, set); pending != 0 {
		t.Errorf("%v requests pending at the end, want 0", pending)
	}
}

func TestRefusalsReleaseAndExplain(t *testing.T) {
	a, released := newAnswers(), &counter{}
	l, _, _ := start(t, a)
	unknown := request(1, released)
	unknown.Model = infer.ModelRef{Name: "other", Version: 2}
	late := request(2, released)
	late.Deadline = 1
	for _, r := range []*infer.Request{unknown, late} {
		if err := l.Submit(r); err != nil {
			t.Fatal(err)
		}
		<-a.came
	}
	for n, want := range map[uint64]errs.Reason{1: errs.ModelNotReady, 2: errs.DeadlineQueue} {
		if got := a.of(n); len(got) != 1 || errs.Of(got[0]) != want || got[0].Error() == "" {
			t.Errorf("request %d: %v, want one %s", n, got, want)
		}
	}
	if released.value() != 2 {
		t.Errorf("%d inputs released, want 2", released.value())
	}
}

func TestDeadlineWakesTheLoop(t *testing.T) {
	a, released := newAnswers(), &counter{}
	l, w, _ := start(t, a)
	running, waiting := request(1, released), request(2, released)
	if err := l.Submit(running); err != nil {
		t.Fatal(err)
	}
	o := <-w.orders
	waiting.Deadline = o.Enqueued[0].Add(20 * time.Millisecond)
	if err := l.Submit(waiting); err != nil {
		t.Fatal(err)
	}
	if n := <-a.came; n != 2 || errs.Of(a.of(2)[0]) != errs.DeadlineQueue {
		t.Errorf("request %d ended with %v, want 2 with %s", n, a.of(n), errs.DeadlineQueue)
	}
	w.finish(o)
	<-a.came
}

func TestRunningDeadlineIsAnsweredAndPassedOn(t *testing.T) {
	a, released := newAnswers(), &counter{}
	l, w, _ := start(t, a)
	first := request(1, released)
	if err := l.Submit(first); err != nil {
		t.Fatal(err)
	}
	o := <-w.orders
	base := o.Enqueued[0]
	w.finish(o)
	<-a.came
	number := uint64(2)
	for wait := 20 * time.Millisecond; ; wait *= 2 { // until it runs before its deadline
		late := request(number, released)
		late.Deadline = base.Add(wait)
		if err := l.Submit(late); err != nil {
			t.Fatal(err)
		}
		if n := <-a.came; n != number {
			t.Fatalf("request %d ended, want %d", n, number)
		}
		reason := errs.Of(a.of(number)[0])
		if reason == errs.DeadlineCompute {
			break
		}
		if reason != errs.DeadlineQueue {
			t.Fatalf("request %d ended with %s, want %s", number, reason, errs.DeadlineCompute)
		}
		number++
	}
	o = <-w.orders
	if id := <-w.cancelled; id.Number != number {
		t.Errorf("request %d cancelled, want %d", id.Number, number)
	}
	w.finish(o)
	<-a.came
}

func TestLostWorkerFailsWhatItRan(t *testing.T) {
	a, released := newAnswers(), &counter{}
	l, w, _ := start(t, a)
	for n := range uint64(2) {
		if err := l.Submit(request(n+1, released)); err != nil {
			t.Fatal(err)
		}
	}
	<-w.orders
	l.Detach(slot0.Worker)
	<-a.came
	<-a.came
	if got := errs.Of(a.of(1)[0]); got != errs.InstanceCrashed {
		t.Errorf("running request: %s, want %s", got, errs.InstanceCrashed)
	}
	if got := errs.Of(a.of(2)[0]); got != errs.NoWorker {
		t.Errorf("waiting request: %s, want %s", got, errs.NoWorker)
	}
	l.Grant(infer.Grant{Instance: slot0, Model: model, Credits: 1}) // too late
	if err := l.Submit(request(3, released)); err != nil {
		t.Fatal(err)
	}
	<-a.came
	if got := errs.Of(a.of(3)[0]); got != errs.NoWorker {
		t.Errorf("request after a detached worker's grant: %s, want %s", got, errs.NoWorker)
	}
}

// What a worker ran that was cut off is the loop's again, which releases it with its answer.
func TestRequestsOfAFailedBatchAreReleased(t *testing.T) {
	a, released := newAnswers(), &counter{}
	l, w, _ := start(t, a)
	if err := l.Submit(request(1, released)); err != nil {
		t.Fatal(err)
	}
	l.Disconnect(slot0.Worker, []*infer.Batch{<-w.orders})
	l.Queues()
	if released.value() != 0 {
		t.Error("released while the worker may come back")
	}
	l.Detach(slot0.Worker)
	<-a.came
	if got := errs.Of(a.of(1)[0]); got != errs.InstanceCrashed {
		t.Errorf("it is answered with %s, want %s", got, errs.InstanceCrashed)
	}
	l.Queues()
	if released.value() != 1 {
		t.Errorf("its inputs were released %d times", released.value())
	}
}

func TestRetiredInstanceIsToldWhenIdle(t *testing.T) {
	a, released := newAnswers(), &counter{}
	l, w, _ := start(t, a)
	if err := l.Submit(request(1, released)); err != nil {
		t.Fatal(err)
	}
	o := <-w.orders
	l.Retire(slot0)
	w.finish(o)
	if id := <-w.retired; id != slot0 {
		t.Errorf("retired %v, want %v", id, slot0)
	}
}

func TestStoppedLoopRefuses(t *testing.T) {
	l, err := dispatch.New(core.Config{}, dispatch.Deps{Clock: mono.New(), Responder: newAnswers(), Stats: stats.NewSet(stats.DefaultLatencies())})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if err := l.Submit(request(1, &counter{})); errs.Of(err) != errs.Draining {
		t.Errorf("submit: %v, want %s", err, errs.Draining)
	}
}

// BenchmarkSubmitToAnswer measures a request's way through the loop to an
// executor that answers at once, from one and from several goroutines.
func BenchmarkSubmitToAnswer(b *testing.B) {
	for _, parallel := range []int{1, 16} {
		b.Run(fmt.Sprintf("posters=%d", parallel), func(b *testing.B) {
			l, _, _ := start(b, discard{})
			l.Detach(slot0.Worker)
			l.Attach(6, infer.Held{}, &instant{loop: l})
			l.Grant(infer.Grant{Instance: infer.InstanceID{Worker: 6}, Model: model, Credits: 1})
			b.ReportAllocs()
			b.SetParallelism(parallel)
			var last counter
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					last.add()
					r := &infer.Request{Work: infer.Work{Request: infer.RequestID{Number: uint64(last.value())}}, Model: model, BatchSize: 1}
					_ = l.Submit(r)
				}
			})
		})
	}
}

type discard struct{}

func (discard) Respond(*infer.Response) {}

// instant completes every order where it gets it.
type instant struct{ loop *dispatch.Loop }

func (i *instant) Execute(o *infer.Batch) {
	i.loop.InstanceFree(&infer.InstanceFree{Batch: o.ID, Instance: o.Instance, Executions: 1, Credits: 1})
}
func (i *instant) Cancel(infer.BatchID, infer.RequestID) {}
func (i *instant) Retired(infer.InstanceID)              {}
