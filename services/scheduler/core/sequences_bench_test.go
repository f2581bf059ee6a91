package core

import (
	"fmt"
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
)

// BenchmarkSequences measures submit to completion: sequences of 16 requests, as
// many at once as an instance has slots, each with one request in flight. One
// decision is one request.
func BenchmarkSequences(b *testing.B) {
	for _, strategy := range []string{"direct", "oldest"} {
		for _, slots := range []int{8, 64, 512} {
			b.Run(fmt.Sprintf("%s/slots=%d", strategy, slots), func(b *testing.B) {
				s := newBench(0, 0)
				ref, id := infer.ModelRef{Name: "m", Version: 1, Generation: 1}, infer.InstanceID{Worker: 1}
				s.core.Step(1, &Event{Kind: Configure, Model: &Model{Ref: ref, Config: &modelconfig.Config{
					MaxBatchSize: int64(slots), Sequences: &modelconfig.SequenceBatching{Oldest: strategy == "oldest", Slots: slots, MaxIdleMicros: 1e6},
				}}})
				s.core.Step(1, &Event{Kind: Granted, Grant: &infer.Grant{Instance: id, Model: ref, Credits: 1}})
				items, batch := make([]*Item, slots), infer.BatchID{}
				for i := range items {
					items[i] = &Item{Request: new(infer.Request)}
				}
				b.ReportAllocs()
				for n := 0; b.Loop(); n++ {
					if s.now += 1000; n%slots == 0 && n > 0 {
						for s.core.InFlight() > 0 {
							batch.Number++
							s.core.Step(mono.Time(s.now), &Event{Kind: InstanceFree, Ended: &infer.InstanceFree{Batch: batch, Instance: id, Credits: 1}})
						}
					}
					it, turn := items[n%slots], n/slots%16
					request := it.Request
					it.Reset()
					request.Sequence = infer.Sequence{ID: uint64(n%slots) + 1, Start: turn == 0, End: turn == 15}
					it.Request, it.Model, it.BatchSize, it.Enqueued = request, ref, 1, mono.Time(s.now)
					it.Work = infer.Work{Request: infer.RequestID{Origin: 1, Number: uint64(n) + 1}, Attempt: 1}
					s.core.Step(mono.Time(s.now), &Event{Kind: Submit, Item: it})
				}
				if c := s.core.Counts(); c.Refused+c.Failed > 0 {
					b.Fatalf("%+v", c)
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
			})
		}
	}
}
