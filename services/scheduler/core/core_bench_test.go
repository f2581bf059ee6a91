package core

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
)

// BenchmarkDecisions measures submit to dispatch: per iteration one request
// of one of four priorities is submitted to one of eight models with bounded
// queues; after 64 of them what runs is completed. One decision is one
// request.
func BenchmarkDecisions(b *testing.B) {
	for _, deadlines := range []bool{false, true} {
		b.Run(fmt.Sprintf("deadlines=%t", deadlines), func(b *testing.B) {
			bench := newBench(8, 8)
			bench.deadlines = deadlines
			b.ReportAllocs()
			for b.Loop() {
				bench.submit()
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
		})
	}
}

// bench is a core whose instances complete as soon as a full batch waits.
type bench struct {
	core      *Core
	now       int64
	next      uint64
	models    []infer.ModelRef
	spare     []*Item
	running   []infer.InstanceFree
	deadlines bool
}

func newBench(models int, maxBatch int64) *bench {
	s := &bench{core: New(Config{MaxRequests: 1 << 16})}
	s.core.Step(1, &Event{Kind: BecomeLeader})
	s.core.Step(1, &Event{Kind: WorkerConnected, Instance: infer.InstanceID{Worker: 1}, Held: &infer.Held{}})
	for s.core.stored != s.core.version {
		s.core.Step(1, &Event{Kind: Recorded, Version: s.core.asked})
	}
	config := &modelconfig.Config{MaxBatchSize: maxBatch, Batching: &modelconfig.DynamicBatching{
		PriorityLevels: priorities, DefaultPriority: 2, DefaultPolicy: modelconfig.QueuePolicy{MaxQueueSize: 1000},
	}}
	for i := range models {
		ref := infer.ModelRef{Name: fmt.Sprint("model", i), Version: 1, Generation: 1}
		s.models = append(s.models, ref)
		s.core.Step(1, &Event{Kind: Configure, Model: &Model{Ref: ref, Config: config}})
		s.core.Step(1, &Event{Kind: Granted, Grant: &infer.Grant{Instance: infer.InstanceID{Worker: 1, Slot: uint32(i)}, Model: ref, Credits: 1}})
	}
	for i := range 1 << 10 {
		s.spare = append(s.spare, &Item{Request: &infer.Request{Priority: uint64(i%priorities) + 1}})
	}
	return s
}

const priorities = 4

func (s *bench) submit() {
	s.now += 1000
	s.next++
	it := s.spare[len(s.spare)-1]
	s.spare = s.spare[:len(s.spare)-1]
	request := it.Request
	it.Reset()
	it.Request, it.Model, it.BatchSize, it.Bytes = request, s.models[s.next%8], 1, 64
	it.Work.Request.Number = s.next
	if s.deadlines {
		it.Deadline = scriptStart.Add(time.Duration(s.now) + 100*time.Millisecond)
	}
	s.apply(s.core.Step(scriptStart.Add(time.Duration(s.now)), &Event{Kind: Submit, Item: it}))
	if s.next%64 == 0 {
		s.completeAll()
	}
}

func (s *bench) completeAll() {
	n := len(s.running)
	for i := range n {
		s.apply(s.core.Step(scriptStart.Add(time.Duration(s.now)), &Event{Kind: InstanceFree, Ended: &s.running[i]}))
	}
	s.running = append(s.running[:0], s.running[n:]...)
}

func (s *bench) apply(decisions []Decision) {
	for i := range decisions {
		switch d := &decisions[i]; d.Kind {
		case Dispatch:
			s.running = append(s.running, infer.InstanceFree{Batch: d.Batch, Instance: d.Instance, Credits: 1})
		case Complete:
			s.spare = append(s.spare, d.Members().Items...)
		}
	}
}

// BenchmarkLosses measures the longest step when a gateway or a worker goes,
// with 50,000 requests waiting for 300 models, in processor time, since a shared
// machine stops now and then.
func BenchmarkLosses(b *testing.B) {
	losses := map[string]Event{
		"gateway of 500": {Kind: GatewayDisconnected, Origin: 2},
		"gateway of all": {Kind: GatewayDisconnected, Origin: 1},
		"the worker":     {Kind: WorkerLost, Instance: infer.InstanceID{Worker: 1}},
		"leadership":     {Kind: StepDown},
	}
	for what, loss := range losses {
		b.Run(what, func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var longest []time.Duration
			for b.Loop() {
				b.StopTimer()
				core := crowded()
				b.StartTimer()
				longest = append(longest, longestStep(core, loss))
			}
			slices.Sort(longest)
			b.ReportMetric(float64(longest[len(longest)/2].Microseconds()), "longest-µs")
		})
	}
}

// crowded is a core with 50,000 requests of two gateways for 300 models.
func crowded() *Core {
	s := newBench(300, 8)
	s.core.config = Config{}
	for i := range 50_000 {
		it := &Item{Request: &infer.Request{}, Model: s.models[i%len(s.models)], BatchSize: 1, Bytes: 64, Deadline: mono.Time(time.Hour)}
		it.Work.Request = infer.RequestID{Origin: uint64(1 + i%100/99), Number: uint64(i + 1)} // every hundredth of gateway 2
		s.core.Step(2, &Event{Kind: Submit, Item: it})
	}
	return s.core
}

func longestStep(core *Core, e Event) (longest time.Duration) {
	for {
		began := threadTime()
		core.Step(3, &e)
		longest = max(longest, threadTime()-began)
		if core.Settled() {
			return longest
		}
		e = Event{Kind: Tick}
	}
}

// threadTime is the processor time that this thread has had.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // 0 where there is no such clock
	return time.Duration(t.Nano())
}
