package instance_test

import (
	"context"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/batches"
	"github.com/nereid-serving/nereid/services/worker/internal/instance"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const worker = 7

// harness is an executor between a recording scheduler and a recording
// gateway. The scheduler retires what it is asked to at once.
type harness struct {
	t        *testing.T
	executor *instance.Executor
	batches  *batches.Table
	panics   chan instance.Panic

	completed chan *infer.InstanceFree
	done      chan infer.UnitDone
	refused   chan refusal
	clock     mono.Clock
	fresh     func(mono.Time) bool // nil is always
	calls     func(*infer.Call, func(*infer.Response)) (cancel func())

	mu        sync.Mutex
	grants    []infer.Grant
	responses map[uint64][]*infer.Response // by request number
	freed     map[uint64]int               // input buffers, by request number
	holdBack  bool                         // do not answer Retire
}

func newHarness(t *testing.T) *harness { return newPipelinedHarness(t, 0) }

// newPipelinedHarness is one whose instances take so many batches beyond those that
// they run.
func newPipelinedHarness(t *testing.T, ahead int) *harness {
	h := &harness{
		t: t, batches: batches.New(),
		panics:    make(chan instance.Panic, 8),
		completed: make(chan *infer.InstanceFree, 64),
		done:      make(chan infer.UnitDone, 64),
		refused:   make(chan refusal, 64),
		clock:     mono.New(),
		responses: map[uint64][]*infer.Response{},
		freed:     map[uint64]int{},
	}
	h.executor = instance.NewExecutor(worker, instance.Deps{
		Scheduler: h, Responder: h, Calls: h, Clock: h.clock, Batches: h.batches,
		Fresh:     func(accepted mono.Time) bool { return h.fresh == nil || h.fresh(accepted) },
		Pipelined: ahead,
		Panicked:  func(p instance.Panic) { h.panics <- p },
	})
	return h
}

func (h *harness) Attach(uint64, infer.Held, infer.Executor) {}
func (h *harness) Detach(uint64)                             {}

func (h *harness) Grant(g infer.Grant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.grants = append(h.grants, g)
}

func (h *harness) Retire(id infer.InstanceID) {
	if !h.holdBack {
		h.executor.Retired(id)
	}
}

func (h *harness) Call(c *infer.Call, receive func(*infer.Response)) func() {
	return h.calls(c, receive)
}

func (h *harness) InstanceFree(c *infer.InstanceFree) { h.completed <- c }

func (h *harness) UnitDone(d infer.UnitDone) { h.done <- d }
func (h *harness) Return(o *infer.Batch, err error) {
	for _, r := range o.Requests {
		r.Release()
	}
	h.refused <- refusal{o.ID.Number, errs.Of(err)}
}

// refusal is an order that was given back.
type refusal struct {
	order  uint64
	reason errs.Reason
}

func (h *harness) Respond(r *infer.Response) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := r.Work.Request.Number
	h.responses[n] = append(h.responses[n], r)
}

// engine is a backend instance made of functions.
type engine struct {
	credits int
	execute func(backend.Batch)
	closed  int
}

func (e *engine) Credits() int            { return max(e.credits, 1) }
func (e *engine) Execute(b backend.Batch) { e.execute(b) }
func (e *engine) Close() error            { e.closed++; return nil }

// open opens an instance that ends with the test.
func (h *harness) open(e backend.Instance) infer.InstanceID {
	id := h.executor.Open(instance.Spec{
		Model: infer.ModelRef{Name: "m", Version: 1, Generation: 1}, Name: "m_0_0", Device: "cpu", Instance: e,
	})
	h.t.Cleanup(func() { h.close(id) })
	return id
}

func (h *harness) close(id infer.InstanceID) {
	if err := h.executor.Close(context.Background(), id); err != nil {
		h.t.Error(err)
	}
}

// order makes an order of requests with the given numbers.
func (h *harness) order(id uint64, in infer.InstanceID, numbers ...uint64) *infer.Batch {
	o := &infer.Batch{ID: infer.BatchID{Epoch: 1, Number: id}, Instance: in}
	for _, n := range numbers {
		b := tensor.Wrap(make([]byte, 4), false, func(*tensor.Buffer) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.freed[n]++
		})
		o.Requests = append(o.Requests, &infer.Request{
			Work:      infer.Work{Request: request(n), Attempt: 1, Epoch: 1},
			BatchSize: 2, Inputs: []infer.Tensor{{Name: "IN", Data: tensor.InBuffer(b, 0, 4)}},
		})
	}
	o.Enqueued = make([]mono.Time, len(numbers))
	return o
}

func batchID(n uint64) infer.BatchID { return infer.BatchID{Epoch: 1, Number: n} }

func request(n uint64) infer.RequestID { return infer.RequestID{Origin: 1, Number: n} }

// run executes an order and waits for its completion.
func (h *harness) run(o *infer.Batch) *infer.InstanceFree {
	h.executor.Execute(o)
	return <-h.completed
}

// answers checks that a request was answered to its end and released, each
// once, and returns its responses.
func (h *harness) answers(n uint64) []*infer.Response {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.freed[n] != 1 {
		h.t.Errorf("request %d: inputs released %d times, want once", n, h.freed[n])
	}
	finals := 0
	for i, r := range h.responses[n] {
		if r.Final {
			finals++
		}
		if r.Work.Request != request(n) || r.Work.Attempt != 1 || int(r.Index) != i {
			h.t.Errorf("request %d: response %d has work %+v and index %d", n, i, r.Work, r.Index)
		}
	}
	if last := len(h.responses[n]) - 1; finals != 1 || !h.responses[n][last].Final {
		h.t.Errorf("request %d: %d final responses of %d, want the last alone", n, finals, last+1)
	}
	return h.responses[n]
}

// answerAll is an execute function that answers every request.
func answerAll(b backend.Batch) {
	b.InputDone()
	b.Executed()
	b.InferDone()
	for i := range b.Requests() {
		b.Respond(i, &infer.Response{Final: true})
	}
	b.Done()
}
