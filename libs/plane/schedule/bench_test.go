package schedule_test

import (
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/schedule"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// echo completes its orders at once and tells the submitter, as the tensor
// plane would.
type echo struct {
	mu      sync.Mutex
	session *schedule.WorkerSession // guarded by mu
	waiting []chan struct{}         // by the request's number
}

func (e *echo) Execute(o *infer.Batch) {
	e.mu.Lock()
	session := e.session
	e.mu.Unlock()
	outcomes := make([]infer.Outcome, len(o.Requests))
	for _, r := range o.Requests {
		number := r.Work.Request.Number
		r.Release()
		e.waiting[number%uint64(len(e.waiting))] <- struct{}{}
	}
	session.InstanceFree(&infer.InstanceFree{Batch: o.ID, Instance: o.Instance, Outcomes: outcomes, Credits: 1})
}
func (e *echo) Cancel(infer.BatchID, infer.RequestID) {}
func (e *echo) Retired(infer.InstanceID)              {}

// relay is a scheduler that decides nothing.
type relay struct{ *backend }

func (r *relay) InstanceFree(*infer.InstanceFree) {}

type silent struct{ *events }

// cpu is the processor time of the process.
func cpu(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e3
}

// BenchmarkTwoHops takes a request of 1 KiB from a gateway over the scheduler to
// a worker, all in one process, and the completion back. cpu-us/op is that of
// all three.
func BenchmarkTwoHops(b *testing.B) {
	for _, network := range []string{"unix", "tcp"} {
		for _, concurrency := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/c%d", network, concurrency), func(b *testing.B) { twoHops(b, network, concurrency) })
		}
	}
}

func twoHops(b *testing.B, network string, concurrency int) {
	s, peers := serveWithin(b, schedule.Window{Messages: 1 << 16, Bytes: 1 << 30})
	s.Serve(3, &relay{newBackend(3)})
	e := &echo{waiting: make([]chan struct{}, concurrency)}
	for i := range e.waiting {
		e.waiting[i] = make(chan struct{}, 1)
	}
	e.mu.Lock()
	w, err := dialler("w", 7).Worker(b.Context(), peers[network], infer.Held{}, e)
	e.session = w
	e.mu.Unlock()
	if err != nil {
		b.Fatal(err)
	}
	g, err := dialler("g", 5).Gateway(b.Context(), peers[network], silent{newEvents()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { closeBoth(g, w) })
	data := make([]byte, 1<<10)
	runtime.GC()
	before := cpu(b)
	b.ResetTimer()
	var all sync.WaitGroup
	for lane := range concurrency {
		all.Go(func() {
			for n := lane; n < b.N; n += concurrency {
				r := &infer.Request{
					Work: infer.Work{Request: infer.RequestID{Origin: 5, Number: uint64(n)}, Attempt: 1}, Model: infer.ModelRef{Name: "add_sub", Version: 1}, BatchSize: 1,
					Inputs:   []infer.Tensor{{Name: "INPUT0", Datatype: tensor.Int32, Shape: tensor.Shape{1, 256}, Data: tensor.InHeap(data)}},
					Deadline: clock.Now() + mono.Time(1e12),
				}
				if err := g.Submit(r); err != nil {
					b.Error(err)
					return
				}
				<-e.waiting[lane]
			}
		})
	}
	all.Wait()
	b.ReportMetric((cpu(b)-before)/float64(b.N), "cpu-us/op")
}
