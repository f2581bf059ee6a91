package core_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
)

// large is a leader of so many workers and models, each of which runs on one of them.
func large(b *testing.B, workers, models int, edit func(*core.Config)) *script {
	s := newScript(&testing.T{}, edit)
	s.feed(core.Started{})
	for i := range workers {
		s.feed(s.worker(fmt.Sprintf("w%04d", i)))
	}
	var list []catalog.Model
	for i := range models {
		list = append(list, model(fmt.Sprintf("m%04d", i), "a"))
	}
	begin := time.Now()
	s.feed(scanned(list...))
	b.ReportMetric(float64(time.Since(begin).Milliseconds()), "start-ms")
	s.lines = nil
	return s
}

// BenchmarkAWorkerLeavesAndJoins measures what the registry's loop takes for a worker that
// stops, and for its return, among 1,000 workers with 5,000 models. Between the two, and
// afterwards, workers load what they were assigned.
func BenchmarkAWorkerLeavesAndJoins(b *testing.B) {
	s := large(b, 1000, 5000, func(*core.Config) {})
	settle := func() {
		for k, part := range s.parts {
			if k.Name != "" && len(part.GetVersions()) > 0 {
				s.feed(s.reports(k.Owner, k.Name, nereidv1.State_STATE_READY))
			}
		}
		clear(s.parts)
		s.feed(s.gateway(0))
		s.feed(core.Tick{})
		clear(s.parts)
	}
	settle()
	var leaves, joins time.Duration
	for i := range b.N {
		id := fmt.Sprintf("w%04d", i%1000)
		s.revision++
		begin := time.Now()
		s.feed(core.Changed{Bucket: core.Workers, Key: core.Key{Name: id}, Revision: s.revision, Deleted: true})
		leaves += time.Since(begin)
		settle()
		begin = time.Now()
		s.feed(s.worker(id))
		joins += time.Since(begin)
		settle()
		s.lines = nil
	}
	b.ReportMetric(leaves.Seconds()*1e3/float64(b.N), "ms/leave")
	b.ReportMetric(joins.Seconds()*1e3/float64(b.N), "ms/join")
}

// BenchmarkALoad measures what the registry's loop takes for a load in a repository of 5,000
// models.
func BenchmarkALoad(b *testing.B) {
	s := large(b, 10, 5000, func(c *core.Config) { c.Poll, c.Explicit, c.LoadAll = false, true, true })
	s.feed(s.gateway(0))
	b.ResetTimer()
	for i := range b.N {
		n := uint64(i + 1)
		id := infer.ModelID{Name: fmt.Sprintf("m%04d", i%5000)}
		s.feed(core.Requested{Caller: n, Load: true, Model: id})
		s.feed(core.WasRead{Operation: n, Model: model(id.Name, fmt.Sprint("b", n))})
		for k := range s.parts {
			if k.Name == id.Name && len(s.parts[k].GetVersions()) > 0 {
				s.feed(s.reports(k.Owner, id.Name, nereidv1.State_STATE_READY))
			}
		}
		s.feed(s.gateway(0))
		s.feed(s.gateway(0))
		s.lines = nil
	}
}
