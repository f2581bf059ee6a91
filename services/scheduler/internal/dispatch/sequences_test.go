package dispatch_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/scheduler/internal/dispatch"
)

// One slot: sequences live, wait and end in every way but by being idle, which takes
// time. What waits in the backlog is pending, as in Triton.
func TestSequencesAreCounted(t *testing.T) {
	a := newAnswers()
	l, w, set := startModel(t, a, &modelconfig.Config{Name: "m", MaxBatchSize: 1, Sequences: &modelconfig.SequenceBatching{Slots: 1, MaxIdleMicros: 1 << 40}})
	l.Grant(infer.Grant{Instance: slot0, Model: model, Credits: 1})
	send := func(n, sequence uint64, start, end bool, timeout time.Duration) {
		t.Helper()
		r := request(n, &counter{})
		r.Sequence, r.Timeout = infer.Sequence{ID: sequence, Start: start, End: end}, timeout
		if err := l.Submit(r); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(when string, want map[string]float64) {
		t.Helper()
		if d := cmp.Diff(want, sequences(t, l)); d != "" {
			t.Errorf("%s: %s", when, d)
		}
	}
	send(1, 7, true, false, 0)
	running := <-w.orders
	for n := range uint64(3) {
		send(2+n, 8+n, true, n == 2, 0)
	}
	send(5, 8, false, false, 0)
	if n := pendingOf(t, set); n != 4 {
		t.Errorf("%v requests are pending, want those of the backlog", n)
	}
	expect("with a backlog", map[string]float64{"live": 1, "backlog": 3})
	l.Cancel(infer.RequestID{Origin: 1, Number: 3})
	send(6, 11, true, true, time.Microsecond)
	<-a.came // 3
	<-a.came // 6
	expect("after a cancellation and a timeout", map[string]float64{"live": 1, "backlog": 2, "canceled": 1, "timeout": 1})
	send(7, 7, false, true, 0)
	w.finish(running)
	w.finish(<-w.orders) // 7
	running = <-w.orders // 2
	expect("when one has ended", map[string]float64{"live": 1, "backlog": 1, "ended": 1, "canceled": 1, "timeout": 1})
	running.Requests[0].Release()
	l.Detach(slot0.Worker)
	for range 3 {
		<-a.came
	}
	expect("when their worker is lost", map[string]float64{"ended": 1, "canceled": 1, "timeout": 1, "lost": 2})
	if n := pendingOf(t, set); n != 0 {
		t.Errorf("%v requests are pending when all have ended", n)
	}
	if problems, err := testutil.CollectAndLint(l.Sequences()); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
}

// sequences are the values of the only model that are not 0: of the gauges, and of the
// ends by their reason.
func sequences(t *testing.T, l *dispatch.Loop) map[string]float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(l.Sequences())
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name, value := strings.TrimSuffix(strings.TrimPrefix(f.GetName(), "nereid_scheduler_"), "_sequences"), m.GetGauge().GetValue()
			for _, label := range m.GetLabel() {
				if label.GetName() == "reason" {
					name, value = label.GetValue(), m.GetCounter().GetValue()
				}
			}
			if value != 0 {
				values[name] = value
			}
		}
	}
	return values
}
