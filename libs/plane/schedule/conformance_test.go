package schedule_test

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/plane/schedule"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// fifo is a scheduler of one queue, which knows how to hold, run, refuse,
// return and lose requests. What its responder and executors are it does not
// know.
type fifo struct {
	responder infer.Responder

	mu       sync.Mutex
	queue    []*infer.Request
	executor infer.Executor
	instance infer.InstanceID
	credits  int
	next     uint64
	running  map[uint64]*infer.Request
}

func newFIFO(r infer.Responder) *fifo {
	return &fifo{responder: r, running: make(map[uint64]*infer.Request)}
}

func (f *fifo) Submit(r *infer.Request) error {
	switch r.Model.Name {
	case "refused":
		return errs.New(errs.ModelNotFound, "no model of the name").WithModel("refused").WithRetry(time.Second)
	case "returned":
		refusal := infer.Refuse(r.Work, errs.New(errs.ModelNotReady, "not ready"))
		refusal.Returned = r
		f.responder.Respond(refusal)
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	r.Work.Epoch = 3
	f.queue = append(f.queue, r)
	f.dispatch()
	return nil
}

// dispatch sends what can be sent. The caller holds mu.
func (f *fifo) dispatch() {
	for f.credits > 0 && len(f.queue) > 0 {
		r := f.queue[0]
		f.queue = f.queue[1:]
		f.credits--
		f.next++
		f.running[f.next] = r
		f.executor.Execute(&infer.Batch{ID: infer.BatchID{Epoch: 3, Number: f.next}, Instance: f.instance, Requests: []*infer.Request{r}, Enqueued: []mono.Time{clock.Now()}})
	}
}

func (f *fifo) drop(which func(*infer.Request) bool, reason errs.Reason) {
	f.mu.Lock()
	var kept, dropped []*infer.Request
	for _, r := range f.queue {
		if which(r) {
			dropped = append(dropped, r)
		} else {
			kept = append(kept, r)
		}
	}
	f.queue = kept
	f.mu.Unlock()
	for _, r := range dropped {
		w := r.Work
		r.Release()
		f.responder.Respond(infer.Refuse(w, errs.New(reason, "dropped")))
	}
}

func (f *fifo) Cancel(id infer.RequestID) {
	f.drop(func(r *infer.Request) bool { return r.Work.Request == id }, errs.Canceled)
}

func (f *fifo) Leave(origin uint64) {
	f.drop(func(r *infer.Request) bool { return r.Work.Request.Origin == origin }, errs.Canceled)
}

func (f *fifo) Deposed(uint64) {}

func (f *fifo) CacheUsed(infer.CacheUse)        {}
func (f *fifo) EnsembleEnded(infer.EnsembleEnd) {}

func (f *fifo) Attach(_ uint64, _ infer.Held, e infer.Executor) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.executor = e
}

func (f *fifo) Grant(g infer.Grant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.instance, f.credits = g.Instance, f.credits+g.Credits
	f.dispatch()
}

func (f *fifo) InstanceFree(c *infer.InstanceFree) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.running, c.Batch.Number)
	f.credits += c.Credits
	f.dispatch()
}

func (*fifo) UnitDone(infer.UnitDone)          {}
func (f *fifo) Return(o *infer.Batch, _ error) { f.lost([]*infer.Batch{o}) }

func (f *fifo) Disconnect(_ uint64, under []*infer.Batch) {
	f.mu.Lock()
	f.credits = 0
	f.mu.Unlock()
	go f.lost(under) // whoever calls may be in the middle of a dispatch
}

func (f *fifo) lost(under []*infer.Batch) {
	for _, o := range under {
		for _, r := range o.Requests {
			w := r.Work
			r.Release()
			f.responder.Respond(infer.Refuse(w, errs.New(errs.InstanceCrashed, "lost")))
		}
	}
}
func (f *fifo) Detach(uint64)              {}
func (f *fifo) Retire(id infer.InstanceID) { f.executor.Retired(id) }

// door is the gateway: it has a table of its requests and counts what comes.
type door struct {
	mu      sync.Mutex
	waiting map[uint64]*infer.Request // guarded by mu
	answers map[uint64][]error        // guarded by mu
	more    chan struct{}
}

func newDoor() *door {
	return &door{waiting: make(map[uint64]*infer.Request), answers: make(map[uint64][]error), more: make(chan struct{}, 1)}
}

// answer takes the final answer to a request.
func (d *door) answer(number uint64, err error) {
	d.mu.Lock()
	if r := d.waiting[number]; r != nil {
		r.Release()
		delete(d.waiting, number)
	}
	d.answers[number] = append(d.answers[number], err)
	d.mu.Unlock()
	select {
	case d.more <- struct{}{}:
	default:
	}
}

func (d *door) Respond(r *infer.Response) { // of the wiring in one process
	number, err := r.Work.Request.Number, r.Err
	if returned := r.Returned; returned != nil {
		r.Returned = nil // it is the door's own
	}
	r.Release()
	d.answer(number, err)
}
func (d *door) Refused(w infer.Work, err error) { d.answer(w.Request.Number, err) }
func (d *door) Response(r *infer.Response, _ bool) {
	d.answer(r.Work.Request.Number, r.Err)
	r.Release()
}
func (d *door) Placed(infer.Work, uint64) {}
func (d *door) Draining()                 {}

// abandon answers what is left, as a gateway does whose scheduler is gone.
func (d *door) abandon() {
	d.mu.Lock()
	var left []uint64
	for n := range d.waiting {
		left = append(left, n)
	}
	d.mu.Unlock()
	for _, n := range left {
		d.answer(n, errs.New(errs.NoWorker, "the scheduler is gone"))
	}
}

// settle waits until nothing is waited for.
func (d *door) settle() {
	for {
		d.mu.Lock()
		n := len(d.waiting)
		d.mu.Unlock()
		if n == 0 {
			return
		}
		<-d.more
	}
}

// mill is the worker: it answers each order's requests to the door, as the
// tensor plane does, and completes.
type mill struct {
	door *door
	to   atomic.Pointer[completer]
	runs sync.Map // by number
	t    testing.TB
}

type completer struct{ complete func(*infer.InstanceFree) }

func (m *mill) Execute(o *infer.Batch) {
	for _, r := range o.Requests {
		n := r.Work.Request.Number
		if _, twice := m.runs.LoadOrStore(n, true); twice {
			m.t.Errorf("request %d ran twice", n)
		}
		for i := range r.Inputs {
			if b, err := r.Inputs[i].Data.Bytes(); err != nil || len(b) > 0 && (b[0] != byte(n) || b[len(b)-1] != byte(n)) {
				m.t.Errorf("request %d came with other bytes, %v", n, err)
			}
		}
		r.Release()
		m.door.answer(n, nil)
	}
	if to := m.to.Load(); to != nil {
		to.complete(&infer.InstanceFree{Batch: o.ID, Instance: o.Instance, Outcomes: make([]infer.Outcome, len(o.Requests)), Credits: 1})
	}
}
func (m *mill) Cancel(infer.BatchID, infer.RequestID) {}
func (m *mill) Retired(infer.InstanceID)              {}

// wiring joins a door, a scheduler and a mill.
type wiring struct {
	door   *door
	submit func(*infer.Request) error
	cancel func(infer.RequestID)
	mill   *mill
	stop   func()
}

func direct(t *testing.T) *wiring {
	d := newDoor()
	f, m := newFIFO(d), &mill{door: d, t: t}
	m.to.Store(&completer{func(c *infer.InstanceFree) { go f.InstanceFree(c) }})
	f.Attach(7, infer.Held{}, m)
	f.Grant(infer.Grant{Instance: instance, Credits: 3})
	// In one process the request passes to the scheduler: the door's is a copy.
	return &wiring{door: d, cancel: f.Cancel, mill: m, stop: func() {}, submit: func(r *infer.Request) error {
		passed := *r
		passed.Inputs = append([]infer.Tensor(nil), r.Inputs...)
		for i := range passed.Inputs {
			passed.Inputs[i].Data = passed.Inputs[i].Data.Retain()
		}
		err := f.Submit(&passed)
		if err != nil || r.Model.Name == "returned" {
			passed.Release()
		}
		if err != nil {
			d.answer(r.Work.Request.Number, err)
		}
		return nil
	}}
}

func remote(t *testing.T, network string, through func(link.Peer) link.Peer) *wiring {
	s, peers := serveWithin(t, schedule.Window{Messages: 1 << 10, Bytes: 1 << 30})
	s.Serve(3, newFIFO(s))
	d := newDoor()
	m := &mill{door: d, t: t}
	w, err := dialler("w", 7).Worker(t.Context(), through(peers[network]), infer.Held{}, m)
	if err != nil {
		t.Fatal(err)
	}
	m.to.Store(&completer{w.InstanceFree})
	w.Grant(infer.Grant{Instance: instance, Credits: 3})
	g, err := dialler("g", 5).Gateway(t.Context(), through(peers[network]), d)
	if err != nil {
		t.Fatal(err)
	}
	return &wiring{door: d, submit: g.Submit, cancel: g.Cancel, mill: m, stop: func() {
		closeBoth(g, w)
		d.abandon()
	}}
}

func same(p link.Peer) link.Peer { return p }

// stock counts the buffers of a test's inputs.
type stock struct{ alive atomic.Int64 }

func (s *stock) request(n uint64, model string, size int) *infer.Request {
	s.alive.Add(1)
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(n)
	}
	b := tensor.Wrap(data, false, func(*tensor.Buffer) { s.alive.Add(-1) })
	r := request(n)
	r.Model.Name = model
	r.Inputs = []infer.Tensor{{Name: "x", Datatype: tensor.Uint8, Shape: tensor.Shape{int64(size)}, Data: tensor.InBuffer(b, 0, int64(size))}}
	return r
}

// empty waits until all have come back: what a broken connection had in its
// hands the collector finds.
func (s *stock) empty() {
	for s.alive.Load() > 0 {
		runtime.GC()
	}
}

// send submits a request and enters it first, as a gateway does.
func (w *wiring) send(r *infer.Request) {
	n := r.Work.Request.Number
	w.door.mu.Lock()
	w.door.waiting[n] = r
	w.door.mu.Unlock()
	if err := w.submit(r); err != nil {
		w.door.answer(n, err)
	}
}

func TestConformance(t *testing.T) {
	for name, wire := range map[string]func(*testing.T) *wiring{
		"in process": direct,
		"unix":       func(t *testing.T) *wiring { return remote(t, "unix", same) },
		"tcp":        func(t *testing.T) *wiring { return remote(t, "tcp", same) },
	} {
		t.Run(name, func(t *testing.T) {
			w, s := wire(t), new(stock)
			const lanes, each = 4, 100
			var all sync.WaitGroup
			for lane := range uint64(lanes) {
				all.Go(func() {
					for i := range uint64(each) {
						n := lane*each + i + 1
						model := map[uint64]string{7: "refused", 8: "returned"}[i%10]
						w.send(s.request(n, model, []int{0, 100, 10_000, 100_000}[i%4]))
						if i%5 == 0 {
							w.cancel(infer.RequestID{Origin: 5, Number: n})
						}
					}
				})
			}
			all.Wait()
			w.door.settle()
			w.stop()
			checkAnswers(t, w.door, lanes*each, each)
			s.empty()
		})
	}
}

func checkAnswers(t *testing.T, d *door, total, each uint64) {
	t.Helper()
	for n := range total {
		list := d.answers[n+1]
		if len(list) != 1 {
			t.Fatalf("request %d has %d answers", n+1, len(list))
		}
		got := errs.Of(list[0])
		switch n % each % 10 {
		case 7:
			if e := errs.From(list[0]); got != errs.ModelNotFound || e.Model != "refused" || e.RetryAfter != time.Second || e.Msg != "no model of the name" {
				t.Errorf("request %d is refused with %#v", n+1, e)
			}
		case 8:
			if got != errs.ModelNotReady {
				t.Errorf("request %d was returned with %v", n+1, list[0])
			}
		default:
			if got != "" && got != errs.Canceled {
				t.Errorf("request %d: %v", n+1, list[0])
			}
		}
	}
}

// cutter is between two peers and breaks their connection after some bytes in
// either direction.
func cutter(t *testing.T, random *rand.Rand) func(link.Peer) link.Peer {
	var mu sync.Mutex
	return func(p link.Peer) link.Peer {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		mu.Lock()
		limits := [2]int64{2_000 + random.Int64N(200_000), 2_000 + random.Int64N(60_000)}
		mu.Unlock()
		go func() {
			near, err := l.Accept()
			if err != nil {
				return
			}
			var d net.Dialer
			far, err := d.DialContext(context.Background(), "tcp", p.Address)
			if err != nil {
				_ = near.Close()
				return
			}
			cut := func() { _, _ = near.Close(), far.Close() }
			go func() { defer cut(); _, _ = io.CopyN(far, near, limits[0]) }()
			defer cut()
			_, _ = io.CopyN(near, far, limits[1])
		}()
		return link.Peer{Address: l.Addr().String()}
	}
}

// Streams that break anywhere leave every request with one owner, who answers
// and releases it, and nothing runs twice.
func TestCutStreamsLoseNothing(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		w, s := remote(t, "tcp", cutter(t, random)), new(stock)
		for n := range uint64(150) {
			w.send(s.request(n+1, "m", random.IntN(20_000)))
		}
		w.stop() // or it has been cut: what is left the gateway answers
		s.empty()
		for n := range uint64(150) {
			if len(w.door.answers[n+1]) == 0 {
				t.Errorf("seed %d: request %d has no answer", seed, n+1)
			}
		}
	}
}
