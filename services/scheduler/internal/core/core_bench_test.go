package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
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
	running   []infer.Completion
	deadlines bool
}

func newBench(models int, maxBatch int64) *bench {
	s := &bench{core: New(Limits{Requests: 1 << 16})}
	s.core.Step(0, &Event{Kind: Lead})
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
	it.Request, it.Model, it.Rows, it.Bytes = request, s.models[s.next%8], 1, 64
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
		s.apply(s.core.Step(scriptStart.Add(time.Duration(s.now)), &Event{Kind: Completed, Completion: &s.running[i]}))
	}
	s.running = append(s.running[:0], s.running[n:]...)
}

func (s *bench) apply(actions []Action) {
	for i := range actions {
		switch a := &actions[i]; a.Kind {
		case Dispatch:
			s.running = append(s.running, infer.Completion{Order: a.Batch.Order.ID, Instance: a.Batch.Order.Instance, Credits: 1})
		case Finished:
			s.spare = append(s.spare, a.Batch.Items...)
		}
	}
}
