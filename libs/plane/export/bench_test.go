package export_test

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/plane/schedule"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// direct is a scheduler that orders each request by itself as it comes.
type direct struct {
	server   *schedule.Server
	next     atomic.Uint64
	attached chan struct{} // closed when the worker has come

	mu       sync.Mutex
	executor infer.Executor
}

func (d *direct) Attach(_ uint64, _ infer.Held, e infer.Executor) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.executor = e
	close(d.attached)
}
func (d *direct) Detach(uint64)                     {}
func (d *direct) Grant(infer.Grant)                 {}
func (d *direct) Retire(infer.InstanceID)           {}
func (d *direct) InstanceFree(*infer.InstanceFree)  {}
func (*direct) UnitDone(infer.UnitDone)             {}
func (d *direct) Return(*infer.Batch, error)        {}
func (d *direct) Leave(uint64)                      {}
func (d *direct) Deposed(uint64)                    {}
func (d *direct) CacheUsed(infer.CacheUse)          {}
func (d *direct) EnsembleEnded(infer.EnsembleEnd)   {}
func (d *direct) Cancel(infer.RequestID)            {}
func (d *direct) Disconnect(uint64, []*infer.Batch) {}

func (d *direct) Submit(r *infer.Request) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.executor.Execute(&infer.Batch{
		ID: infer.BatchID{Epoch: 1, Number: d.next.Add(1)}, Instance: infer.InstanceID{Worker: workerEpoch}, Requests: []*infer.Request{r}, Enqueued: []mono.Time{r.Received},
	})
	return nil
}

// whole is a gateway, a scheduler and a worker, with streams between them.
type whole struct {
	*plane
	session *schedule.GatewaySession
	reply   int

	mu      sync.Mutex
	waiting map[uint64]chan *infer.Response
}

func (w *whole) Refused(infer.Work, error)      {}
func (w *whole) Response(*infer.Response, bool) {}
func (w *whole) Placed(infer.Work, uint64)      {}
func (w *whole) Draining()                      {}

func (w *whole) Respond(r *infer.Response) {
	w.mu.Lock()
	ch := w.waiting[r.Work.Request.Number]
	delete(w.waiting, r.Work.Request.Number)
	w.mu.Unlock()
	ch <- r
}

// gather answers each request with a tensor of some bytes, after it has read
// the inputs once.
type gather struct {
	whole *whole
	batch []byte
}

func (g *gather) Retired(infer.InstanceID)              {}
func (g *gather) Cancel(infer.BatchID, infer.RequestID) {}
func (g *gather) Execute(o *infer.Batch) {
	for _, r := range o.Requests {
		for _, in := range r.Inputs {
			data, err := in.Data.Bytes()
			if err != nil {
				g.whole.t.Error(err)
			}
			copy(g.batch, data)
		}
		out, err := g.whole.worker.pool.Get(g.whole.reply)
		if err != nil {
			g.whole.t.Error(err)
		}
		r.Release()
		g.whole.at.Respond(&infer.Response{Work: r.Work, Final: true, Outputs: []infer.Tensor{{
			Name: "out", Datatype: tensor.Uint8, Shape: tensor.Shape{int64(g.whole.reply)}, Data: tensor.InBuffer(out, 0, int64(g.whole.reply)),
		}}})
	}
}

// workerSession is the worker's scheduler.
type workerSession struct {
	infer.Scheduler
	peer link.Peer
	w    *whole
}

func (s *workerSession) Attach(worker uint64, held infer.Held, e infer.Executor) {
	session, err := dialler("worker", worker, s.w.worker.pool, s.w.clock).Worker(s.w.t.Context(), s.peer, held, e)
	if err != nil {
		s.w.t.Fatal(err)
	}
	s.Scheduler = attached{session}
}

func dialler(id string, epoch uint64, pool *tensor.Pool, clock mono.Clock) *schedule.Dialler {
	return &schedule.Dialler{Self: schedule.Identity{ID: id, Incarnation: epoch}, Clock: clock, Pool: pool}
}

type attached struct{ *schedule.WorkerSession }

func (attached) Attach(uint64, infer.Held, infer.Executor) {}
func (attached) Detach(uint64)                             {}

func newWhole(b *testing.B, m mode, delay time.Duration, reply int) *whole {
	w := &whole{plane: newPlane(b, m), reply: reply, waiting: make(map[uint64]chan *infer.Response)}
	w.to = w
	d := &direct{attached: make(chan struct{})}
	d.server = schedule.NewServer(schedule.Config{ID: "s", Clock: w.clock, Log: zap.NewNop(), Window: schedule.Window{Messages: 1024, Bytes: 1 << 30}})
	server := grpc.NewServer(link.ServerOptions(nil, nil)...)
	nereidv1.RegisterSchedulerServiceServer(server, d.server)
	address := "127.0.0.1:0"
	if m.network == "unix" {
		address = filepath.Join(b.TempDir(), "s")
	}
	l, err := net.Listen(m.network, address)
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = server.Serve(l) }() // ends with Stop
	b.Cleanup(server.Stop)
	d.server.Serve(1, d)
	b.Cleanup(d.server.Stop)
	at := link.Peer{Address: l.Addr().String()}
	if m.network == "unix" {
		at.Address = "unix:" + address
	}
	if delay > 0 {
		at.Address = delayed(b, at.Address, delay)
		w.peer.Address = delayed(b, w.peer.Address, delay)
	}
	to := &workerSession{peer: at, w: w}
	w.at.Introduce(workerEpoch)
	to.Attach(workerEpoch, infer.Held{}, &fetching{
		p: w.plane, to: to, next: &gather{whole: w, batch: make([]byte, 8<<20)}, cancel: make(map[infer.RequestID]func(error)),
	})
	<-d.attached
	w.connect()
	b.Cleanup(w.stop)
	if w.session, err = dialler("gateway", gatewayEpoch, w.gateway.pool, w.clock).Gateway(b.Context(), at, w); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(w.session.Close)
	return w
}

// infer sends one request with an input of n bytes through and waits for its
// answer.
func (w *whole) infer(number uint64, data tensor.Ref) {
	r := &infer.Request{Work: work(number), BatchSize: 1, Inputs: []infer.Tensor{{
		Name: "in", Datatype: tensor.Uint8, Shape: tensor.Shape{data.Length}, Data: data,
	}}}
	answer := make(chan *infer.Response, 1)
	w.mu.Lock()
	w.waiting[number] = answer
	w.mu.Unlock()
	if err := w.session.Submit(w.lend(r)); err != nil {
		w.t.Error(err)
		return
	}
	a := <-answer
	if a.Err != nil {
		w.t.Error(a.Err)
	}
	a.Release()
	w.forget(r.Work.Request)
}

// BenchmarkRequest is a request from the gateway by way of the scheduler to the
// worker, which reads its input once, and a reply of 4 KiB or less. All are in
// this process, whose processor time it is.
func BenchmarkRequest(b *testing.B) {
	for _, m := range modes() {
		for _, delay := range []time.Duration{0, 500 * time.Microsecond} {
			if delay > 0 && m.network != "tcp" {
				continue
			}
			for _, n := range []int{1 << 10, 600 << 10, 4 << 20} {
				for _, crowd := range []int{1, 16, 64} {
					name := fmt.Sprintf("%s/delay=%v/%dKiB/c%d", m.name, delay, n>>10, crowd)
					b.Run(name, func(b *testing.B) { benchmark(b, newWhole(b, m, delay, min(n, 4<<10)), n, crowd) })
				}
			}
		}
	}
}

func benchmark(b *testing.B, w *whole, n, crowd int) {
	var number atomic.Uint64
	took := make([][]time.Duration, crowd)
	turn := func(lane int, data tensor.Ref) {
		begun := time.Now()
		w.infer(number.Add(1), data)
		took[lane] = append(took[lane], time.Since(begun))
	}
	inputs := make([]infer.Tensor, crowd)
	for lane := range inputs {
		inputs[lane] = w.gateway.tensorOf(b, "in", n)
		turn(lane, inputs[lane].Data)
		took[lane] = took[lane][:0]
	}
	before := processorTime(b)
	b.ResetTimer()
	var group sync.WaitGroup
	for lane := range crowd {
		group.Go(func() {
			for i := lane; i < b.N; i += crowd {
				turn(lane, inputs[lane].Data)
			}
		})
	}
	group.Wait()
	b.StopTimer()
	b.ReportMetric(float64((processorTime(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
	all := slices.Concat(took...)
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-us")
	for lane := range inputs {
		inputs[lane].Data.Release()
	}
}

func processorTime(b *testing.B) time.Duration {
	var use unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &use); err != nil {
		b.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// delayed stands before an address and delays what passes, each way.
func delayed(b *testing.B, address string, by time.Duration) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", address)
			if err != nil {
				b.Error(err)
				return
			}
			go delay(near, far, by)
			go delay(far, near, by)
		}
	}()
	return l.Addr().String()
}

// delay copies until either side ends. What was read is written so much later.
func delay(to io.WriteCloser, from io.Reader, by time.Duration) {
	type piece struct {
		data []byte
		due  time.Time
	}
	pieces := make(chan piece, 4096)
	go func() {
		defer to.Close()
		for p := range pieces {
			<-time.After(time.Until(p.due))
			if _, err := to.Write(p.data); err != nil {
				return
			}
		}
	}()
	defer close(pieces)
	for {
		data := make([]byte, 64<<10)
		n, err := from.Read(data)
		if err != nil {
			return
		}
		pieces <- piece{data[:n], time.Now().Add(by)}
	}
}
