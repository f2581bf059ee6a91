package export_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/plane/export"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/shm"
	"github.com/nereid-serving/nereid/libs/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for; no test measures it.
const patience = 2 * time.Minute

const gatewayEpoch, workerEpoch = 7, 9

// end is one process's memory.
type end struct {
	arena *shm.Arena
	pool  *tensor.Pool
}

func newEnd(t testing.TB, shared bool) end {
	t.Helper()
	if !shared {
		return end{pool: tensor.NewPool(1 << 30)}
	}
	arena, err := shm.New(4 << 30)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := arena.Close(); err != nil {
			t.Error(err)
		}
	})
	return end{arena, tensor.NewPoolOf(arena, 1<<30)}
}

// checkEmpty fails if tensor memory is in use. What gRPC had in its hands when a
// connection broke comes back with the garbage.
func (e end) checkEmpty(t testing.TB, name string) {
	t.Helper()
	for range 1000 {
		if e.pool.Stats().InUse == 0 {
			return
		}
		runtime.GC()
	}
	t.Errorf("%d bytes of the %s are not given back", e.pool.Stats().InUse, name)
}

// tensorOf makes a tensor of n bytes in the end's pool.
func (e end) tensorOf(t testing.TB, name string, n int) infer.Tensor {
	t.Helper()
	b, err := e.pool.Get(n)
	if err != nil {
		t.Fatal(err)
	}
	data := b.Bytes()
	for i := range min(n, 997) { // no divisor of any size of parts
		data[i] = byte(i*7 + n)
	}
	for have := 997; have < n; have *= 2 {
		copy(data[have:], data[:have])
	}
	return infer.Tensor{Name: name, Datatype: tensor.Uint8, Shape: tensor.Shape{int64(n)}, Data: tensor.InBuffer(b, 0, int64(n))}
}

// plane is a gateway and a worker, with a stream between them while it is
// connected.
type plane struct {
	t               testing.TB
	gateway, worker end
	peer            link.Peer
	at, from        *export.Endpoint // the worker's and the gateway's
	to              infer.Responder  // the gateway's requests'
	models          models           // that the worker's call
	asked           chan uint64      // processes with which the worker asked for a stream
	dropped         chan mono.Time   // when the worker has dropped answers, as the gateway hears
	progress        export.Progress
	clock           *mono.System
	answers         chan *infer.Response
	lent            lent
	stop            func()
	places          func(in infer.Tensor) infer.Tensor // what the executor answers with; nil is a copy in the worker's memory
	written         atomic.Int64                       // bytes on the stream from the worker
}

// counting is a listener whose connections count what is written to them.
type counting struct {
	net.Listener
	written *atomic.Int64
}

type countingConn struct {
	net.Conn
	written *atomic.Int64
}

func (l counting) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return countingConn{c, l.written}, err
}

func (c countingConn) Write(b []byte) (int, error) {
	c.written.Add(int64(len(b)))
	return c.Conn.Write(b)
}

type mode struct {
	name    string
	network string
	shared  bool
}

func modes() []mode {
	return []mode{{"one host", "unix", true}, {"unix", "unix", false}, {"tcp", "tcp", false}}
}

func newPlane(t testing.TB, m mode) *plane {
	t.Helper()
	p := &plane{t: t, gateway: newEnd(t, m.shared), worker: newEnd(t, m.shared), answers: make(chan *infer.Response, 1024), clock: mono.New()}
	p.to = responder(func(r *infer.Response) { p.answers <- r })
	p.asked, p.dropped = make(chan uint64, 1024), make(chan mono.Time, 1024)
	p.at = export.NewEndpoint(export.Config{
		ID: "worker", Arena: p.worker.arena, Pool: p.worker.pool, Clock: p.clock, Reach: func(of uint64) {
			select {
			case p.asked <- of:
			default:
			}
		},
	})
	p.from = export.NewEndpoint(export.Config{
		ID: "gateway", Arena: p.gateway.arena, Pool: p.gateway.pool, Clock: p.clock,
		Responder: responder(func(r *infer.Response) { p.to.Respond(r) }), Lent: p.lent.inputs,
		Calls: &p.models, Control: &p.models,
		Dropped: func(worker uint64, at mono.Time) {
			if worker != workerEpoch {
				t.Errorf("worker %d has dropped answers", worker)
			}
			p.dropped <- at
		},
	})
	p.from.Introduce(gatewayEpoch)
	address := "127.0.0.1:0"
	if m.network == "unix" {
		address = filepath.Join(t.TempDir(), "s")
	}
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), m.network, address)
	if err != nil {
		t.Fatal(err)
	}
	p.peer.Address = l.Addr().String()
	if m.network == "unix" {
		p.peer.Address = "unix:" + address
	}
	server := grpc.NewServer(link.ServerOptions(nil, nil)...)
	p.at.Register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(counting{l, &p.written}) }()
	t.Cleanup(func() {
		p.at.Close()
		p.from.Close()
		server.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
		p.gateway.checkEmpty(t, "gateway")
		p.worker.checkEmpty(t, "worker")
	})
	return p
}

// lent are the inputs of requests as they were named, with their leases.
type lent struct {
	sync.Map // of infer.RequestID
}

type lentInputs struct {
	named []infer.Tensor
	lease export.Lease
}

func (l *lent) inputs(id infer.RequestID) []infer.Tensor {
	if in, ok := l.Load(id); ok {
		return in.(lentInputs).named
	}
	return nil
}

// lend returns a copy of a request as it is submitted.
func (p *plane) lend(r *infer.Request) *infer.Request {
	copied := *r
	named, lease := p.from.Exports.Lend(r.Inputs, gatewayEpoch)
	copied.Inputs = named
	p.lent.Store(r.Work.Request, lentInputs{named, lease})
	return &copied
}

// forget ends what was lent of a request.
func (p *plane) forget(id infer.RequestID) {
	if in, ok := p.lent.LoadAndDelete(id); ok {
		in := in.(lentInputs)
		in.lease.Release()
	}
}

type responder func(*infer.Response)

func (f responder) Respond(r *infer.Response) { f(r) }

// connect begins a stream.
func (p *plane) connect() {
	p.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	session, err := p.from.Dial(ctx, p.peer, &p.progress)
	if err != nil {
		p.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- session.Run(ctx) }()
	p.stop = sync.OnceFunc(func() {
		stop()
		<-ended
	})
}

// answer waits for the next response.
func (p *plane) answer() *infer.Response {
	p.t.Helper()
	select {
	case r := <-p.answers:
		return r
	case <-time.After(patience):
		p.t.Fatal("no answer has come")
		return nil
	}
}

// pool is a scheduler as the worker sees it: it passes orders on and keeps
// completions.
type pool struct {
	infer.Scheduler
	executor  infer.Executor
	completed chan *infer.InstanceFree
}

func (s *pool) Attach(_ uint64, _ infer.Held, e infer.Executor) { s.executor = e }
func (*pool) UnitDone(infer.UnitDone)                           {}
func (s *pool) Return(_ *infer.Batch, err error)                { panic(err) }
func (s *pool) InstanceFree(c *infer.InstanceFree)              { s.completed <- c }

// echo is an executor that answers with its inputs, in memory of the worker.
type echo struct{ plane *plane }

func (e echo) Retired(infer.InstanceID)              {}
func (e echo) Cancel(infer.BatchID, infer.RequestID) {}

func (e echo) Execute(b *infer.Batch) {
	for _, r := range b.Requests {
		answer := &infer.Response{Work: r.Work, Final: true}
		for _, in := range r.Inputs {
			answer.Outputs = append(answer.Outputs, e.output(in))
		}
		r.Release()
		e.plane.at.Respond(answer)
	}
}

func (e echo) output(in infer.Tensor) infer.Tensor {
	data, err := in.Data.Bytes()
	if err != nil {
		e.plane.t.Error(err)
	}
	out := in
	if e.plane.places != nil {
		return e.plane.places(in)
	}
	b, err := e.plane.worker.pool.Get(len(data))
	if err != nil {
		e.plane.t.Error(err)
	}
	copy(b.Bytes(), data)
	out.Data = tensor.InBuffer(b, 0, int64(len(data)))
	return out
}

// fetching is an executor whose requests go on, each by itself, when their inputs
// can be read, and whose batches end with the last.
type fetching struct {
	p    *plane
	to   infer.Scheduler
	next infer.Executor

	mu     sync.Mutex
	cancel map[infer.RequestID]func(error)
}

func (*fetching) Retired(infer.InstanceID) {}

func (f *fetching) Cancel(_ infer.BatchID, id infer.RequestID) {
	f.mu.Lock()
	cancel := f.cancel[id]
	f.mu.Unlock()
	cancel(errs.New(errs.Canceled, ""))
}

func (f *fetching) Execute(b *infer.Batch) {
	outcomes, missing := make([]infer.Outcome, len(b.Requests)), len(b.Requests)
	for i, r := range b.Requests {
		work := r.Work
		cancel := f.p.at.FetchInputs(r, func(err error) {
			if err == nil {
				f.next.Execute(&infer.Batch{ID: b.ID, Requests: []*infer.Request{r}})
			} else {
				r.Release()
				f.p.at.Respond(infer.Refuse(work, err))
			}
			f.mu.Lock()
			if err != nil {
				outcomes[i] = infer.Rejected
			}
			missing--
			last := missing == 0
			f.mu.Unlock()
			if last {
				f.to.InstanceFree(&infer.InstanceFree{Batch: b.ID, Instance: b.Instance, Outcomes: outcomes, Credits: 1})
			}
		})
		f.mu.Lock()
		f.cancel[work.Request] = cancel
		f.mu.Unlock()
	}
}

// attach puts an echo behind the fetching of inputs.
func (p *plane) attach() *pool {
	s := &pool{completed: make(chan *infer.InstanceFree, 1024)}
	p.at.Introduce(workerEpoch)
	s.executor = &fetching{p: p, to: s, next: echo{p}, cancel: make(map[infer.RequestID]func(error))}
	return s
}

func work(n uint64) infer.Work {
	return infer.Work{Request: infer.RequestID{Origin: gatewayEpoch, Number: n}, Attempt: 1}
}

// order is an order of requests as it comes to the worker.
func (p *plane) order(id uint64, requests ...*infer.Request) *infer.Batch {
	p.t.Helper()
	o := &infer.Batch{ID: infer.BatchID{Epoch: 1, Number: id}, Enqueued: make([]mono.Time, len(requests))}
	for _, r := range requests {
		sent := *p.lend(r)
		sent.Deadline = 0 // it may pass before the order is made
		arrived := p.cross(&sent)
		arrived.Deadline = r.Deadline
		o.Requests = append(o.Requests, arrived)
	}
	return o
}

// cross brings a request over as streams do.
func (p *plane) cross(r *infer.Request) (arrived *infer.Request) {
	p.t.Helper()
	out, in := codec.NewWriter(new(codec.Spares)), codec.NewReader(tensor.NewPool(0))
	if err := out.Submit(r, p.clock.Now()); err != nil {
		p.t.Fatal(err)
	}
	err := in.Each(out.Take(), func(_ protowire.Number, b codec.Body) (err error) {
		arrived, err = in.Submit(b, p.clock.Now())
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return arrived
}

func TestTensorsArriveAsTheyWere(t *testing.T) {
	sizes := []int{0, 1, 8 << 10, 16 << 10, 600 << 10, 4 << 20, 64 << 20}
	for _, m := range modes() {
		for _, n := range sizes {
			t.Run(fmt.Sprintf("%s/%d", m.name, n), func(t *testing.T) {
				p := newPlane(t, m)
				s := p.attach()
				p.connect()
				defer p.stop()
				in := p.gateway.tensorOf(t, "in", n)
				r := &infer.Request{Work: work(1), BatchSize: 1, Inputs: []infer.Tensor{in}}
				s.executor.Execute(p.order(1, r))
				answer := p.answer()
				if answer.Err != nil || !answer.Final || len(answer.Outputs) != 1 {
					t.Fatalf("answered with %v", answer)
				}
				got, err := answer.Outputs[0].Data.Bytes()
				want, _ := in.Data.Bytes()
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("%d bytes came as %d others: %v", len(want), len(got), err)
				}
				answer.Release()
				p.forget(r.Work.Request)
				r.Release()
				<-s.completed
			})
		}
	}
}

// An output that does not lie in the worker's shared memory reaches a gateway of
// the same host without passing the stream all the same.
func TestOutputsThatLieElsewhereArrive(t *testing.T) {
	const n = 600 << 10
	for name, places := range map[string]func(infer.Tensor) infer.Tensor{
		"an input": func(in infer.Tensor) infer.Tensor {
			in.Data.Retain()
			return in
		},
		"a part of an input": func(in infer.Tensor) infer.Tensor {
			in.Data, in.Shape = in.Data.Retain(), tensor.Shape{n / 2}
			in.Data.Offset, in.Data.Length = n/4, n/2
			return in
		},
		"memory of a backend": func(in infer.Tensor) infer.Tensor {
			in.Data = tensor.InHeap(bytes.Clone(must(in.Data.Bytes())))
			return in
		},
	} {
		for _, m := range modes() {
			t.Run(name+"/"+m.name, func(t *testing.T) {
				p := newPlane(t, m)
				p.places = places
				s := p.attach()
				p.connect()
				defer p.stop()
				in := p.gateway.tensorOf(t, "in", n)
				tries, fewest := 1, int64(n)
				if m.shared {
					tries = 100 // until the worker has heard that its memory is read
				}
				for number := uint64(0); tries > 0 && fewest > n/4; tries, number = tries-1, number+1 {
					p.written.Store(0)
					r := &infer.Request{Work: work(number), BatchSize: 1, Inputs: []infer.Tensor{in}}
					s.executor.Execute(p.order(number, r))
					answer := p.answer()
					out := places(in)
					if answer.Err != nil || !bytes.Equal(must(answer.Outputs[0].Data.Bytes()), must(out.Data.Bytes())) {
						t.Errorf("answered with other bytes, or %v", answer.Err)
					}
					out.Data.Release()
					p.forget(r.Work.Request) // what is answered with an input outlives it
					answer.Release()
					<-s.completed
					fewest = min(fewest, p.written.Load())
				}
				in.Data.Release()
				if m.shared && fewest > n/4 {
					t.Errorf("%d bytes of %d went over the stream", fewest, n)
				}
			})
		}
	}
}

// Strings, and batches without rows, cross as numbers do.
func TestStringsAndEmptyBatchesArrive(t *testing.T) {
	var many []byte
	for i := range 20_000 {
		many = tensor.AppendBytes(many, strings.Repeat("s", i%50))
	}
	few := tensor.AppendBytes(tensor.AppendBytes(nil, ""), "é")
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			p := newPlane(t, m)
			s := p.attach()
			p.connect()
			defer p.stop()
			of := func(d tensor.Datatype, data []byte, shape ...int64) infer.Tensor {
				in := p.gateway.tensorOf(t, "in", len(data))
				copy(must(in.Data.Bytes()), data)
				in.Datatype, in.Shape = d, shape
				return in
			}
			r := &infer.Request{Work: work(1), BatchSize: 1, Inputs: []infer.Tensor{
				of(tensor.Bytes, many, 1, 20_000), of(tensor.Bytes, few, 1, 2), of(tensor.FP32, nil, 0, 4), of(tensor.Bytes, nil, 0),
			}}
			s.executor.Execute(p.order(1, r))
			answer := p.answer()
			defer answer.Release()
			if answer.Err != nil || len(answer.Outputs) != len(r.Inputs) {
				t.Fatalf("answered with %d outputs, %v", len(answer.Outputs), answer.Err)
			}
			for i, out := range answer.Outputs {
				in := r.Inputs[i]
				if out.Datatype != in.Datatype || !out.Shape.Equal(in.Shape) || !bytes.Equal(must(out.Data.Bytes()), must(in.Data.Bytes())) {
					t.Errorf("output %d of %s and shape %s differs from the input", i, out.Datatype, out.Shape)
				}
			}
			p.forget(r.Work.Request)
			r.Release()
			<-s.completed
		})
	}
}

func must(data []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return data
}

func TestInputThatIsGoneFailsItsRequestAlone(t *testing.T) {
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			p := newPlane(t, m)
			s := p.attach()
			p.connect()
			defer p.stop()
			r := []*infer.Request{nil, nil}
			for i := range r {
				r[i] = &infer.Request{Work: work(uint64(i)), BatchSize: 1, Inputs: []infer.Tensor{p.gateway.tensorOf(t, "in", 100<<10)}}
			}
			o := p.order(1, r...)
			p.forget(r[0].Work.Request)
			r[0].Release()
			s.executor.Execute(o)
			got := map[uint64]error{}
			for range 2 {
				a := p.answer()
				got[a.Work.Request.Number] = a.Err
				a.Release()
			}
			if errs.Of(got[0]) != errs.TransferFailed || got[1] != nil {
				t.Errorf("answers: %v and %v, want transfer_failed and none", got[0], got[1])
			}
			c := <-s.completed
			if len(c.Outcomes) != 2 || c.Outcomes[0] != infer.Rejected || c.Outcomes[1] != infer.Succeeded || c.Credits != 1 {
				t.Errorf("completion %+v", c)
			}
			p.forget(r[1].Work.Request)
			r[1].Release()
		})
	}
}
