package schedule_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/plane/schedule"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// backend orders every request by itself as it comes, on the one instance.
type backend struct {
	mu       sync.Mutex
	epoch    uint64
	next     uint64
	executor infer.Executor

	attached     chan infer.Held
	granted      chan infer.Grant
	completed    chan *infer.InstanceFree
	cancelled    chan infer.RequestID
	cacheUses    chan infer.CacheUse
	disconnected chan []*infer.Batch
	refused      chan error
	deposed      chan uint64
	detached     chan uint64
	err          error // of Submit
}

func newBackend(epoch uint64) *backend {
	return &backend{
		epoch: epoch, attached: make(chan infer.Held, 10), granted: make(chan infer.Grant, 10), completed: make(chan *infer.InstanceFree, 10), cancelled: make(chan infer.RequestID, 10), cacheUses: make(chan infer.CacheUse, 10),
		disconnected: make(chan []*infer.Batch, 10), refused: make(chan error, 10), deposed: make(chan uint64, 10), detached: make(chan uint64, 10),
	}
}

func (b *backend) Attach(_ uint64, held infer.Held, e infer.Executor) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.executor = e
	b.attached <- held
}
func (b *backend) Detach(worker uint64)               { b.detached <- worker }
func (b *backend) Grant(g infer.Grant)                { b.granted <- g }
func (b *backend) Retire(id infer.InstanceID)         { b.executor.Retired(id) }
func (b *backend) InstanceFree(c *infer.InstanceFree) { b.completed <- c }
func (b *backend) Cancel(id infer.RequestID)          { b.cancelled <- id }
func (*backend) UnitDone(infer.UnitDone)              {}
func (b *backend) Return(_ *infer.Batch, e error)     { b.refused <- e }
func (b *backend) Leave(uint64)                       {}
func (b *backend) CacheUsed(u infer.CacheUse)         { b.cacheUses <- u }
func (b *backend) EnsembleEnded(infer.EnsembleEnd)    {}
func (b *backend) Deposed(by uint64)                  { b.deposed <- by }
func (b *backend) Disconnect(_ uint64, under []*infer.Batch) {
	b.disconnected <- under
}

func (b *backend) Submit(r *infer.Request) error {
	if b.err != nil {
		return b.err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next++
	r.Work.Epoch = b.epoch
	b.executor.Execute(&infer.Batch{
		ID: infer.BatchID{Epoch: b.epoch, Number: b.next}, Instance: instance, Requests: []*infer.Request{r}, Enqueued: []mono.Time{r.Received},
	})
	return nil
}

var instance = infer.InstanceID{Worker: 7, Slot: 1}

// events is a gateway's handler.
type events struct {
	refused  chan error
	response chan *infer.Response
	returned chan bool
	placed   chan uint64
}

func newEvents() *events {
	return &events{make(chan error, 10), make(chan *infer.Response, 10), make(chan bool, 10), make(chan uint64, 10)}
}
func (e *events) Refused(_ infer.Work, err error)           { e.refused <- err }
func (e *events) Response(r *infer.Response, returned bool) { e.response <- r; e.returned <- returned }
func (e *events) Placed(_ infer.Work, worker uint64)        { e.placed <- worker }
func (e *events) Draining()                                 {}

type executor struct {
	orders  chan *infer.Batch
	retired chan infer.InstanceID
}

func newExecutor() *executor {
	return &executor{make(chan *infer.Batch, 10), make(chan infer.InstanceID, 10)}
}
func (e *executor) Execute(o *infer.Batch)                { e.orders <- o }
func (e *executor) Cancel(infer.BatchID, infer.RequestID) {}
func (e *executor) Retired(id infer.InstanceID)           { e.retired <- id }

var clock = mono.New()

// serve runs a server on a unix socket and on TCP.
func serve(t testing.TB) (*schedule.Server, map[string]link.Peer) {
	t.Helper()
	return serveWithin(t, schedule.Window{Messages: 4, Bytes: 1 << 20})
}

func serveWithin(t testing.TB, window schedule.Window) (*schedule.Server, map[string]link.Peer) {
	t.Helper()
	s := schedule.NewServer(schedule.Config{
		ID: "s", Pool: "default", Clock: clock, Log: zap.NewNop(), Window: window,
	})
	server := grpc.NewServer(link.ServerOptions(nil, nil)...)
	nereidv1.RegisterSchedulerServiceServer(server, s)
	peers := make(map[string]link.Peer)
	var served sync.WaitGroup
	for network, address := range map[string]string{"unix": filepath.Join(t.TempDir(), "s"), "tcp": "127.0.0.1:0"} {
		var config net.ListenConfig
		l, err := config.Listen(t.Context(), network, address)
		if err != nil {
			t.Fatal(err)
		}
		at := l.Addr().String()
		if network == "unix" {
			at = "unix:" + address
		}
		peers[network] = link.Peer{Address: at}
		served.Go(func() {
			if err := server.Serve(l); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		s.Stop()
		server.Stop()
		served.Wait()
	})
	return s, peers
}

func dialler(id string, incarnation uint64) *schedule.Dialler {
	return &schedule.Dialler{Self: schedule.Identity{ID: id, Incarnation: incarnation}, Clock: clock, Pool: tensor.NewPool(0)}
}

func dialBoth(t *testing.T, peer link.Peer, ev *events, ex *executor) (*schedule.GatewaySession, *schedule.WorkerSession) {
	t.Helper()
	w, err := dialler("w", 7).Worker(t.Context(), peer, infer.Held{Epoch: 2}, ex)
	if err != nil {
		t.Fatal(err)
	}
	g, err := dialler("g", 5).Gateway(t.Context(), peer, ev)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeBoth(g, w) })
	return g, w
}

func closeBoth(g *schedule.GatewaySession, w *schedule.WorkerSession) {
	g.Close()
	w.Close()
	<-g.Done()
	<-w.Done()
}

func request(n uint64) *infer.Request {
	return &infer.Request{
		Work: infer.Work{Request: infer.RequestID{Origin: 5, Number: n}, Attempt: 1}, Model: infer.ModelRef{Name: "m", Version: 1}, BatchSize: 1,
		Inputs:   []infer.Tensor{{Name: "x", Datatype: tensor.Int32, Shape: tensor.Shape{2}, Data: tensor.InHeap([]byte{1, 0, 0, 0, 2, 0, 0, 0})}},
		Deadline: clock.Now().Add(time.Hour), Trace: "00-1-2-01",
	}
}

func TestARequestCrosses(t *testing.T) {
	s, peers := serve(t)
	for name, peer := range peers {
		t.Run(name, func(t *testing.T) {
			b, ev, ex := newBackend(3), newEvents(), newExecutor()
			s.Serve(3, b)
			g, w := dialBoth(t, peer, ev, ex)
			w.Grant(infer.Grant{Instance: instance, Model: infer.ModelRef{Name: "m", Version: 1}, Name: "m_0", Device: "cpu", Credits: 2, Pipelined: 1})
			if grant := <-b.granted; grant.Credits != 2 || grant.Pipelined != 1 || grant.Instance != instance || grant.Device != "cpu" {
				t.Errorf("granted %+v", grant)
			}
			used := infer.CacheUse{Model: infer.ModelRef{Name: "m", Version: 1}, Hit: true, Time: 5}
			g.CacheUsed(used)
			if err := g.Submit(request(1)); err != nil {
				t.Fatal(err)
			}
			if got := <-b.cacheUses; got != used {
				t.Errorf("the cache did %+v", got)
			}
			o := <-ex.orders
			r := o.Requests[0]
			data, err := r.Inputs[0].Data.Bytes()
			if err != nil || string(data) != "\x01\x00\x00\x00\x02\x00\x00\x00" || r.Trace != "00-1-2-01" || o.ID.Epoch != 3 || r.Work.Epoch != 3 {
				t.Errorf("ordered %+v with %v, %v", r, data, err)
			}
			if left, ok := r.Deadline.Left(clock.Now()); !ok || left > time.Hour+time.Minute || left < 0 {
				t.Errorf("%v are left of the deadline", left)
			}
			w.InstanceFree(&infer.InstanceFree{Batch: o.ID, Instance: instance, Outcomes: []infer.Outcome{infer.Canceled}, Credits: 1})
			if c := <-b.completed; c.Batch != o.ID || c.Outcomes[0] != infer.Canceled {
				t.Errorf("completed %+v", c)
			}
			refusal := infer.Refuse(r.Work, errs.Wrap(errs.ModelNotReady, errors.New("cause"), "gone").WithModel("m").WithRetry(time.Second))
			refusal.Returned = r
			text := refusal.Err.Error()
			s.Respond(refusal)
			got := <-ev.response
			if e := errs.From(got.Err); e.Error() != text || e.Reason != errs.ModelNotReady || e.RetryAfter != time.Second || e.Model != "m" || !got.Immediate || !<-ev.returned {
				t.Errorf("the response is %+v: %v", got, got.Err)
			}
			w.Retire(instance)
			if id := <-ex.retired; id != instance {
				t.Errorf("retired %v", id)
			}
		})
	}
}

func TestWithoutTheLeaseStreamsAreRefusedAndEnd(t *testing.T) {
	s, peers := serve(t)
	ev, ex := newEvents(), newExecutor()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := dialler("g", 5).Gateway(ctx, peers["tcp"], ev); errs.Of(err) != errs.PeerUnreachable {
		t.Fatalf("a scheduler that does not serve: %v", err)
	}
	b := newBackend(3)
	s.Serve(3, b)
	g, w := dialBoth(t, peers["tcp"], ev, ex)
	<-b.attached // which is after the worker's session has begun
	if err := g.Submit(request(1)); err != nil {
		t.Fatal(err)
	}
	<-ex.orders
	s.Stop()
	<-g.Done()
	<-w.Done()
	if under := <-b.disconnected; len(under) != 1 || len(under[0].Requests) != 1 {
		t.Errorf("%d orders came back, want 1", len(under))
	}
	if err := g.Submit(request(2)); errs.Of(err) != errs.NoWorker {
		t.Errorf("submitting afterwards: %v", err)
	}
}

// A scheduler hears of a later one that its peers have met, and serves neither.
func TestLaterSchedulerIsToldByWhoHasMetIt(t *testing.T) {
	s, peers := serve(t)
	b := newBackend(3)
	s.Serve(3, b)
	g := dialler("g", 5)
	g.Met = 4
	if _, err := g.Gateway(t.Context(), peers["tcp"], newEvents()); errs.Of(err) != errs.PeerUnreachable {
		t.Errorf("a gateway is served: %v", err)
	}
	if _, err := dialler("w", 7).Worker(t.Context(), peers["tcp"], infer.Held{Epoch: 5}, newExecutor()); errs.Of(err) != errs.PeerUnreachable {
		t.Errorf("a worker is served: %v", err)
	}
	if gateway, worker := <-b.deposed, <-b.deposed; gateway != 4 || worker != 5 || len(b.attached) != 0 {
		t.Errorf("the scheduler hears of epochs %d and %d, want 4 and 5; %d workers attached", gateway, worker, len(b.attached))
	}
	g.Met = 3
	session, err := g.Gateway(t.Context(), peers["tcp"], newEvents())
	if err != nil {
		t.Fatal(err)
	}
	session.Close()
	<-session.Done()
}

func TestCreditsBoundWhatAGatewaySends(t *testing.T) {
	s, peers := serve(t)
	b, ev, ex := newBackend(3), newEvents(), newExecutor()
	b.err = nil
	hold := &holding{backend: b}
	s.Serve(3, hold)
	g, _ := dialBoth(t, peers["unix"], ev, ex)
	for n := range uint64(4) {
		if err := g.Submit(request(n)); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Submit(request(5)); errs.Of(err) != errs.QueueFull {
		t.Errorf("without credit: %v", err)
	}
}

// What a client puts into parameters counts as what it puts into tensors.
func TestDescriptorsUseCredit(t *testing.T) {
	s, peers := serve(t)
	s.Serve(3, &holding{backend: newBackend(3)})
	g, _ := dialBoth(t, peers["unix"], newEvents(), newExecutor())
	large := request(1)
	large.Parameters = []infer.Parameter{{Key: "text", Value: strings.Repeat("x", 1<<20)}}
	if err := g.Submit(large); err != nil {
		t.Fatal(err)
	}
	if err := g.Submit(request(2)); errs.Of(err) != errs.QueueFull {
		t.Errorf("behind a parameter as large as the window: %v", err)
	}
}

// holding is a backend with a queue that nothing leaves.
type holding struct{ *backend }

func (h *holding) Submit(*infer.Request) error { return nil }

// A worker that has ended says so and may exit when the scheduler has forgotten it. A
// gateway is told which worker runs what it has submitted again.
func TestWorkersLeaveAndAdoptedRequestsArePlaced(t *testing.T) {
	s, peers := serve(t)
	b, ev := newBackend(3), newEvents()
	s.Serve(3, b)
	g, w := dialBoth(t, peers["tcp"], ev, newExecutor())
	w.Leave()
	if worker := <-b.detached; worker != 7 {
		t.Errorf("worker %d has left, want 7", worker)
	}
	select {
	case <-w.Left():
		t.Error("the worker may exit before the scheduler has forgotten it")
	default:
	}
	s.Left(8) // another, without a stream
	s.Left(7)
	<-w.Left()
	s.Left(7) // once more
	if err := g.Submit(request(1)); err != nil {
		t.Fatal(err)
	}
	if worker := <-ev.placed; worker != 7 {
		t.Errorf("placed on worker %d, want 7", worker)
	}
	s.Placed(infer.Work{Request: infer.RequestID{Origin: 6, Number: 1}}, 7) // of a gateway without a stream
	s.Placed(request(1).Work, 9)
	if worker := <-ev.placed; worker != 9 {
		t.Errorf("placed on worker %d, want 9", worker)
	}
}
