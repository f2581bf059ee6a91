package wiring

import (
	"context"
	"net"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/plane/schedule"
	"github.com/nereid-serving/nereid/libs/shm"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/port"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway"
	"github.com/nereid-serving/nereid/services/scheduler"
	"github.com/nereid-serving/nereid/services/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for; no test measures it.
const patience = time.Minute

// wiring is a way to put the services together.
type wiring struct {
	name    string
	network string // empty: they call each other
	shared  bool   // they share memory
}

func wirings() []wiring {
	return []wiring{{name: "one process"}, {"one host", "unix", true}, {"tcp", "tcp", false}}
}

func (w wiring) apart() bool { return w.network != "" }

const (
	incarnation  = 7 // of the gateway
	maxBatch     = 4
	maxQueueSize = 3
	// ahead is how many orders the instance takes beyond the one that it runs,
	// where it is not in the scheduler's process.
	ahead = 1
	// takes is what the instance says of each execution.
	takes = 10 * time.Microsecond
	// batchMemory is what the inputs of the worker's batches may have: two large ones.
	batchMemory = 2*large + large/2
)

var ref = infer.ModelRef{Name: "m", Version: 1, Generation: 1}

// scene is one gateway, scheduler and worker with one instance.
type scene struct {
	*testing.T
	wiring wiring
	bus    *bus.Bus
	clock  *mono.System

	requests  *gateway.Requests
	gateway   gateway.Dispatcher
	scheduler *schedulerOf
	lives     int    // of schedulers
	uncounted uint64 // completions that may have been lost with their stream

	worker    infer.Scheduler // as the worker sees it
	responder infer.Responder
	instance  infer.InstanceID

	gatewayPool, workerPool *tensor.Pool
	answers                 chan *infer.Response
	orders                  chan *infer.Batch
	cancelled               chan infer.RequestID
}

// schedulerOf is one life of a scheduler.
type schedulerOf struct {
	*scheduler.Scheduler
	streams *schedule.Server
	address string
	server  *grpc.Server // of the streams, nil in one process
	stop    func()
}

func newScene(t *testing.T, w wiring) *scene {
	t.Helper()
	s := &scene{
		T: t, wiring: w, clock: mono.New(), requests: gateway.NewRequests(),
		answers: make(chan *infer.Response, 100), orders: make(chan *infer.Batch, 100), cancelled: make(chan infer.RequestID, 100),
	}
	var err error
	if s.bus, err = bus.Open(t.Context(), bus.Config{Lease: patience}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.must(s.bus.Close()) })
	s.must(s.bus.EnsureBuckets(t.Context()))
	models, err := bus.NewBucket(s.bus, bus.Models, bus.Values[*nereidv1.ModelValue]())
	s.must(err)
	_, err = models.Put(t.Context(), ref.Name, model())
	s.must(err)
	if w.apart() {
		s.join()
		s.begin() // it sees the worker's lease, and waits for its instances
	} else {
		s.begin()
		s.gatewayPool, s.workerPool = tensor.NewPool(0), tensor.NewPool(0)
		s.gateway, s.worker, s.responder, s.instance.Worker = s.scheduler, s.scheduler, s, 3
	}
	s.worker.Attach(s.instance.Worker, infer.Held{Memory: batchMemory}, s)
	s.grant(0)
	return s
}

// grant offers an instance.
func (s *scene) grant(slot uint32) {
	id := infer.InstanceID{Worker: s.instance.Worker, Slot: slot}
	g := infer.Grant{Instance: id, Model: ref, Credits: 1}
	if s.wiring.apart() {
		g.Credits, g.Pipelined = g.Credits+ahead, ahead
	}
	s.worker.Grant(g)
}

func model() *nereidv1.ModelValue {
	return &nereidv1.ModelValue{
		Schema: nereidv1.Schema, Name: ref.Name,
		Config: &inference.ModelConfig{
			Name: ref.Name, Backend: "echo", MaxBatchSize: maxBatch,
			Input:  []*inference.ModelInput{{Name: "x", DataType: inference.DataType_TYPE_INT8, Dims: []int64{-1}}},
			Output: []*inference.ModelOutput{{Name: "x", DataType: inference.DataType_TYPE_INT8, Dims: []int64{-1}}},
			SchedulingChoice: &inference.ModelConfig_DynamicBatching{DynamicBatching: &inference.ModelDynamicBatching{
				DefaultQueuePolicy: &inference.ModelQueuePolicy{MaxQueueSize: maxQueueSize},
			}},
		},
		Versions: []*nereidv1.ModelVersion{{Version: ref.Version, Generation: ref.Generation, Desired: nereidv1.DesiredState_DESIRED_STATE_SERVE}},
	}
}

func (s *scene) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// run runs something until the function that it returns, or the test's end.
func (s *scene) run(f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			s.Error(err)
		}
	})
	s.Cleanup(stop)
	return stop
}

// listen has a server listen at an address; empty is any.
func (s *scene) listen(address string, register func(grpc.ServiceRegistrar)) (server *grpc.Server, at string) {
	s.Helper()
	switch {
	case address != "":
	case s.wiring.network == "unix":
		address = filepath.Join(s.TempDir(), "s")
	default:
		address = port.Address(s) // for it may listen there again
	}
	l, err := (&net.ListenConfig{}).Listen(s.Context(), s.wiring.network, address)
	s.must(err)
	server = grpc.NewServer(link.ServerOptions(nil, nil)...)
	register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	s.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			s.Error(err)
		}
	})
	return server, l.Addr().String()
}

// begin starts a scheduler, which takes the pool when it is free.
func (s *scene) begin() {
	s.Helper()
	s.lives++
	x, config := &schedulerOf{}, scheduler.Default()
	config.ID, config.TakeoverWait = string(rune('a'-1+s.lives)), patience
	deps := scheduler.Deps{Bus: s.bus, Clock: s.clock, Responder: s, Metrics: prometheus.NewRegistry(), Log: zap.NewNop()}
	if s.wiring.apart() {
		x.streams = schedule.NewServer(schedule.Config{
			ID: config.ID, Pool: config.Pool, Clock: s.clock, Log: zap.NewNop(), Window: schedule.Window{Messages: 1 << 10, Bytes: 1 << 20},
		})
		x.server, x.address = s.listen("", x.streams.Register)
		config.Address = s.peer(x.address)
		deps.Responder, deps.Streams = x.streams, x.streams
	}
	var err error
	x.Scheduler, err = scheduler.New(config, deps)
	s.must(err)
	x.stop = s.run(x.Run)
	s.scheduler = x
}

func (s *scene) peer(address string) string {
	if s.wiring.network == "unix" {
		return "unix:" + address
	}
	return address
}

// cut breaks the connections of the scheduler, which listens again.
func (s *scene) cut() {
	s.Helper()
	s.uncounted++
	s.scheduler.server.Stop()
	s.scheduler.server, _ = s.listen(s.scheduler.address, s.scheduler.streams.Register)
}

// memory is a process's.
func (s *scene) memory() (*tensor.Pool, *shm.Arena) {
	s.Helper()
	if !s.wiring.shared {
		return tensor.NewPool(0), nil
	}
	arena, err := shm.New(1 << 30)
	s.must(err)
	s.Cleanup(func() { s.must(arena.Close()) })
	return tensor.NewPoolOf(arena, 0), arena
}

// join connects a gateway and a worker to whoever holds the pool.
func (s *scene) join() {
	s.Helper()
	workers, err := bus.NewBucket(s.bus, bus.Workers, bus.Values[*nereidv1.WorkerValue]())
	s.must(err)
	pool, arena := s.memory()
	far := worker.NewRemote(worker.RemoteDeps{
		ID: "w", Pool: infer.DefaultPool, Bus: s.bus, Tensors: pool, Arena: arena, Clock: s.clock, Log: zap.NewNop(),
	})
	s.workerPool, s.worker, s.responder = pool, far.Scheduler(), far.Responder()
	_, address := s.listen("", far.Register)
	lease, err := workers.Register(s.Context(), bus.Claim[*nereidv1.WorkerValue]{Key: "w", Value: func(epoch uint64) *nereidv1.WorkerValue {
		return &nereidv1.WorkerValue{Schema: nereidv1.Schema, WorkerId: "w", Epoch: epoch, Address: s.peer(address)}
	}})
	s.must(err)
	s.instance.Worker = lease.Epoch()
	s.run(lease.Run)
	s.run(func(ctx context.Context) error { return lifecycle.Run(ctx, far.Parts()...) })

	pool, arena = s.memory()
	near := gateway.NewRemote(gateway.RemoteDeps{
		ID: "g", Bus: s.bus, Pool: pool, Arena: arena, Clock: s.clock, Requests: s.requests, Metrics: prometheus.NewRegistry(), Log: zap.NewNop(),
	})
	s.gatewayPool, s.gateway = pool, near
	near.Register(incarnation)
	s.run(func(ctx context.Context) error { return lifecycle.Run(ctx, near.Parts()...) })
}

// Respond takes a response for the gateway.
func (s *scene) Respond(r *infer.Response) { s.requests.Respond(r) }

// Receive takes a response for the gateway's client.
func (s *scene) Receive(r *infer.Response) (last bool) {
	last = r.Final
	s.answers <- r
	return last
}

// Execute and the others are the worker's instance.
func (s *scene) Execute(o *infer.Batch)                          { s.orders <- o }
func (s *scene) Cancel(_ infer.BatchID, request infer.RequestID) { s.cancelled <- request }
func (s *scene) Retired(infer.InstanceID)                        {}

// request is one of n bytes, the number of the request each.
func (s *scene) request(number uint64, n int) *infer.Request {
	s.Helper()
	return &infer.Request{
		Work:  infer.Work{Request: infer.RequestID{Origin: incarnation, Number: number}, Attempt: 1},
		Model: ref, Pool: infer.DefaultPool, BatchSize: 1, Received: s.clock.Now(),
		Inputs: []infer.Tensor{s.tensor(s.gatewayPool, byte(number), n)},
	}
}

// full is a request that is a batch by itself.
func (s *scene) full(number uint64) *infer.Request {
	s.Helper()
	r := s.request(number, small)
	r.BatchSize, r.Inputs[0].Shape = maxBatch, tensor.Shape{maxBatch, small / maxBatch}
	return r
}

// ahead returns two orders of one request each, of which the second has come
// before the first is over, and the number of the second's. Those before have
// been answered. An order goes ahead once its time is known, and of an instance
// that seems to be about to be free; on a machine that stands still it may not.
func (s *scene) ahead() (first, second *infer.Batch, number uint64) {
	s.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		number += 2
		s.submit(s.full(number - 1))
		first = s.order(number - 1)
		s.submit(s.full(number))
		s.await(func() bool {
			queues, err := s.scheduler.Queues(s.Context())
			return len(s.orders) > 0 || err == nil && len(queues) == 1 && queues[0].Waiting == 1
		})
		if len(s.orders) > 0 {
			return first, s.order(number), number
		}
		s.finish(first, nil)
		s.result(number-1, small)
		s.finish(s.order(number), nil)
		s.result(number, small)
	}
	s.Fatal("no order has gone ahead")
	return nil, nil, 0
}

func (s *scene) tensor(pool *tensor.Pool, with byte, n int) infer.Tensor {
	s.Helper()
	b, err := pool.Get(n)
	s.must(err)
	for i := range b.Bytes() {
		b.Bytes()[i] = with
	}
	return infer.Tensor{Name: "x", Datatype: tensor.Int8, Shape: tensor.Shape{1, int64(n)}, Data: tensor.InBuffer(b, 0, int64(n))}
}

// submit submits requests as the gateway's core does: one that is not taken is
// answered.
func (s *scene) submit(requests ...*infer.Request) {
	for _, r := range requests {
		work := r.Work
		s.requests.Open(work, &r.Model, s)
		if err := s.gateway.Submit(r); err != nil {
			r.Release()
			s.requests.Finish(infer.Fail(work, err))
		}
	}
}

// waiting returns when so many requests wait in the scheduler.
func (s *scene) waiting(n int) {
	s.Helper()
	holds := s.await(func() bool {
		queues, err := s.scheduler.Queues(s.Context())
		return err == nil && (len(queues) == 0 && n == 0 || len(queues) == 1 && queues[0].Waiting == n)
	})
	if !holds {
		s.Fatalf("there are not %d requests waiting", n)
	}
}

// await reports whether a condition came to hold.
func (s *scene) await(holds func() bool) bool {
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for end := time.Now().Add(patience); !holds(); <-poll.C {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// next takes what comes next.
func next[T any](s *scene, from <-chan T, what string) (v T) {
	s.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		for len(s.answers) > 0 {
			r := <-s.answers
			s.Logf("request %d is answered: %v", r.Work.Request.Number, r.Err)
			r.Release()
		}
		queues, err := s.scheduler.Queues(s.Context())
		s.Fatalf("no %s has come; the scheduler has %+v, %v", what, queues, err)
	}
	return v
}

// order is the next that the worker gets, and has to have these requests.
func (s *scene) order(numbers ...uint64) *infer.Batch {
	s.Helper()
	o := next(s, s.orders, "order")
	for i, r := range o.Requests {
		if len(numbers) != len(o.Requests) || r.Work.Request.Number != numbers[i] {
			s.Fatalf("request %d of an order of %d is %d, want %d", i, len(o.Requests), r.Work.Request.Number, numbers)
		}
	}
	return o
}

// finish answers an order with its inputs, or its requests with an error, and
// completes it.
func (s *scene) finish(o *infer.Batch, failure error) {
	s.Helper()
	now := s.clock.Now()
	done := &infer.InstanceFree{
		Batch: o.ID, Instance: o.Instance, Credits: 1, Executions: 1, BatchSize: int64(len(o.Requests)),
		Timing: infer.Timing{Start: now.Add(-takes), InputDone: now.Add(-takes), InferDone: now, Done: now},
	}
	for _, r := range o.Requests {
		answer, outcome := &infer.Response{Work: r.Work, Final: true}, infer.Succeeded
		if failure != nil {
			answer, outcome = infer.Fail(r.Work, failure), infer.Canceled
		} else {
			data, err := r.Inputs[0].Data.Bytes()
			s.must(err)
			answer.Outputs = []infer.Tensor{s.tensor(s.workerPool, data[len(data)-1], len(data))}
		}
		r.Release()
		done.Outcomes = append(done.Outcomes, outcome)
		s.responder.Respond(answer)
	}
	s.worker.InstanceFree(done)
}

// answer is the next to the gateway's client.
func (s *scene) answer(number uint64) *infer.Response {
	s.Helper()
	r := next(s, s.answers, "answer")
	if r.Work.Request.Number != number || r.Work.Attempt != 1 || !r.Final {
		s.Fatalf("an answer to %+v, final %v; want one to request %d", r.Work, r.Final, number)
	}
	return r
}

// result checks that the next answer is a result of n bytes.
func (s *scene) result(number uint64, n int) {
	s.Helper()
	r := s.answer(number)
	defer r.Release()
	if r.Err != nil {
		s.Fatalf("request %d failed: %v", number, r.Err)
	}
	data, err := r.Outputs[0].Data.Bytes()
	s.must(err)
	if len(data) != n || data[0] != byte(number) || data[n-1] != byte(number) {
		s.Errorf("the answer to request %d has other bytes than it", number)
	}
}

// over checks that all is answered, counted and given back.
func (s *scene) over(succeeded, failed uint64) {
	s.Helper()
	var counts []infer.Statistics
	var used int64
	holds := s.await(func() bool {
		runtime.GC() // what gRPC had in its hands when a connection broke comes back with the garbage
		var err error
		counts, err = s.scheduler.Statistics(s.Context(), []infer.ModelRef{ref})
		s.must(err)
		used = s.gatewayPool.Stats().InUse + s.workerPool.Stats().InUse
		return counts[0].Success.Count <= succeeded && counts[0].Success.Count+s.uncounted >= succeeded && counts[0].Fail.Count == failed && used == 0
	})
	if !holds {
		s.Fatalf("%d succeeded and %d failed by the statistics, want %d and %d; %d bytes are in use",
			counts[0].Success.Count, counts[0].Fail.Count, succeeded, failed, used)
	}
	if len(s.answers) > 0 || len(s.orders) > 0 {
		s.Errorf("%d answers and %d orders too many", len(s.answers), len(s.orders))
	}
}
