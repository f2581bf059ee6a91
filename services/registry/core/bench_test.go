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
// stops, and for another that comes in its place, among 1,000 workers with 5,000 models.
func BenchmarkAWorkerLeavesAndJoins(b *testing.B) {
	s := large(b, 1000, 5000, func(*core.Config) {})
	b.ResetTimer()
	for i := range b.N {
		id := fmt.Sprintf("w%04d", i%1000)
		s.revision++
		s.feed(core.Changed{Bucket: core.Workers, Key: core.Key{Name: id}, Revision: s.revision, Deleted: true})
		s.feed(s.worker(id))
		s.lines = nil
	}
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
