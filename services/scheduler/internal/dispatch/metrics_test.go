package dispatch_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/scheduler/internal/dispatch"
	"github.com/nereid-serving/nereid/services/scheduler/internal/stats"
)

// readings are the values of the one model's series of a family, by reason
// where they have one.
func readings(t *testing.T, set *stats.Set, family string) map[string]float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(set)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := make(map[string]float64)
	for _, f := range families {
		if f.GetName() != family {
			continue
		}
		for _, m := range f.GetMetric() {
			reason := ""
			for _, label := range m.GetLabel() {
				if label.GetName() == "reason" {
					reason = label.GetValue()
				}
			}
			values[reason] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	if len(values) == 0 {
		t.Fatalf("no family %s", family)
	}
	return values
}

// pendingOf reads the one model's pending gauge.
func pendingOf(t *testing.T, set *stats.Set) float64 {
	t.Helper()
	return readings(t, set, "nv_inference_pending_request_count")[""]
}

// scene is a loop whose only instance is busy with request 1, which waits for
// nobody's answer but the test's.
type scene struct {
	*testing.T
	loop    *dispatch.Loop
	worker  *worker
	answers *answers
	running *infer.Batch
}

func (s *scene) submit(n uint64, edit func(*infer.Request)) {
	s.Helper()
	r := request(n, &counter{})
	if edit != nil {
		edit(r)
	}
	if err := s.loop.Submit(r); err != nil {
		s.Fatal(err)
	}
}

// end completes request 1 with an outcome. What the loop does next, it does
// after that.
func (s *scene) end(o infer.Outcome) {
	s.running.Requests[0].Release()
	s.loop.InstanceFree(&infer.InstanceFree{
		Batch: s.running.ID, Instance: slot0, Executions: 1, BatchSize: 1, Outcomes: []infer.Outcome{o}, Credits: 1,
	})
	s.submit(99, nil)
	<-s.worker.orders
}

func TestFailuresAreCountedUnderTheirReason(t *testing.T) {
	tests := map[string]struct {
		policy modelconfig.QueuePolicy
		happen func(*scene)
		want   map[string]float64
	}{
		"a full queue": {
			policy: modelconfig.QueuePolicy{MaxQueueSize: 1},
			happen: func(s *scene) { s.submit(2, nil); s.submit(3, nil); <-s.answers.came },
			want:   map[string]float64{"REJECTED": 1},
		},
		"a timeout in the queue": {
			policy: modelconfig.QueuePolicy{DefaultTimeoutMicros: 1000},
			happen: func(s *scene) { s.submit(2, nil); <-s.answers.came },
			want:   map[string]float64{"REJECTED": 1},
		},
		"a deadline in the queue": {
			happen: func(s *scene) {
				s.submit(2, func(r *infer.Request) { r.Deadline = s.running.Enqueued[0].Add(20 * time.Millisecond) })
				<-s.answers.came
			},
			want: map[string]float64{"REJECTED": 1},
		},
		"a deadline before the start": {
			happen: func(s *scene) { s.end(infer.Rejected) },
			want:   map[string]float64{"REJECTED": 1},
		},
		"a client that left the queue": {
			happen: func(s *scene) {
				s.submit(2, nil)
				s.loop.Cancel(infer.RequestID{Origin: 1, Number: 2})
				<-s.answers.came
			},
			want: map[string]float64{"CANCELED": 1},
		},
		"a client that left while it ran": {
			happen: func(s *scene) { s.end(infer.Canceled) },
			want:   map[string]float64{"CANCELED": 1},
		},
		"a gateway that left, and submits again what it wants": {
			happen: func(s *scene) {
				s.submit(2, nil)
				s.loop.Leave(1)
				s.loop.Queues() // by when it has left
				if n := len(s.answers.of(2)); n != 0 {
					s.Errorf("%d answers for a gateway that is not there", n)
				}
			},
		},
		"a failure of the model": {
			happen: func(s *scene) { s.end(infer.Failed) },
			want:   map[string]float64{"BACKEND": 1},
		},
		"a lost worker, and nobody for what waits": {
			happen: func(s *scene) {
				s.submit(2, nil)
				s.loop.Detach(slot0.Worker)
				<-s.answers.came
				<-s.answers.came
			},
			want: map[string]float64{"OTHER": 2},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := newAnswers()
			config := &modelconfig.Config{Name: "m", MaxBatchSize: 1, Batching: &modelconfig.DynamicBatching{DefaultPolicy: tt.policy}}
			l, w, set := startModel(t, a, config)
			l.Grant(infer.Grant{Instance: slot0, Model: model, Credits: 1})
			s := &scene{T: t, loop: l, worker: w, answers: a}
			s.submit(1, nil)
			s.running = <-w.orders
			tt.happen(s)
			want := map[string]float64{"REJECTED": 0, "CANCELED": 0, "BACKEND": 0, "OTHER": 0}
			for reason, n := range tt.want {
				want[reason] = n
			}
			if diff := cmp.Diff(want, readings(t, set, "nv_inference_request_failure")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if n := readings(t, set, "nv_inference_request_success")[""]; n != 0 {
				t.Errorf("%v successes, want none", n)
			}
		})
	}
}

// The examples by which Triton explains its counts.
func TestCountsOfRequestsInferencesAndExecutions(t *testing.T) {
	batcher := new(modelconfig.DynamicBatching)
	tests := map[string]struct {
		rows                             []int64
		batcher                          *modelconfig.DynamicBatching
		requests, inferences, executions float64
	}{
		"one of batch 1":                 {[]int64{1}, nil, 1, 1, 1},
		"one of batch 8":                 {[]int64{8}, nil, 1, 8, 1},
		"1 and 8 without batcher":        {[]int64{1, 8}, nil, 2, 9, 2},
		"1 and 1 that meet in a batch":   {[]int64{1, 1}, batcher, 2, 2, 1},
		"1 and 8 that meet in a batch":   {[]int64{1, 8}, batcher, 2, 9, 1},
		"8 and 9 that do not fit in one": {[]int64{8, 9}, batcher, 2, 17, 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := newAnswers()
			l, w, set := startModel(t, a, &modelconfig.Config{Name: "m", MaxBatchSize: 16, Batching: tt.batcher})
			l.Grant(infer.Grant{Instance: slot0, Model: model}) // ready, but busy
			for i, rows := range tt.rows {
				r := request(uint64(i+1), &counter{})
				r.BatchSize = rows
				if err := l.Submit(r); err != nil {
					t.Fatal(err)
				}
			}
			if n := pendingOf(t, set); n != float64(len(tt.rows)) {
				t.Errorf("%v requests are pending, want %d", n, len(tt.rows))
			}
			l.Grant(infer.Grant{Instance: slot0, Model: model, Credits: 1})
			for range int(tt.executions) {
				w.finish(<-w.orders)
			}
			l.Grant(infer.Grant{Instance: slot0, Model: model, Credits: 1})
			if err := l.Submit(request(99, &counter{})); err != nil {
				t.Fatal(err)
			}
			<-w.orders // so that the completions have been counted
			for family, want := range map[string]float64{
				"nv_inference_request_success": tt.requests, "nv_inference_count": tt.inferences,
				"nv_inference_exec_count": tt.executions, "nv_inference_pending_request_count": 0,
			} {
				if got := readings(t, set, family)[""]; got != want {
					t.Errorf("%s is %v, want %v", family, got, want)
				}
			}
		})
	}
}

// What ran before this scheduler led is counted as its worker tells it.
func TestOrdersOfAnEarlierSchedulerAreCountedWithTheirRows(t *testing.T) {
	tests := map[string]struct {
		rows []int64
		want float64
	}{
		"told":                            {[]int64{8, 3}, 11},
		"by a worker of the last release": {nil, 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			l, w, set := startModel(t, newAnswers(), &modelconfig.Config{Name: "m", MaxBatchSize: 16})
			work := func(n uint64) infer.Work {
				return infer.Work{Request: infer.RequestID{Origin: 1, Number: n}, Attempt: 1}
			}
			l.Attach(slot0.Worker, infer.Held{Running: []infer.Running{
				{Batch: infer.BatchID{Epoch: 5, Number: 4}, Instance: slot0, Units: []infer.Work{work(1), work(2)}, BatchSizes: tt.rows},
			}}, w)
			l.Grant(infer.Grant{Instance: slot0, Model: model})
			l.InstanceFree(&infer.InstanceFree{
				Batch: infer.BatchID{Epoch: 5, Number: 4}, Instance: slot0, Executions: 1, Outcomes: []infer.Outcome{infer.Succeeded, infer.Succeeded}, Credits: 1,
			})
			if err := l.Submit(request(99, &counter{})); err != nil {
				t.Fatal(err)
			}
			<-w.orders // so that the completion has been counted
			if got := readings(t, set, "nv_inference_count")[""]; got != tt.want {
				t.Errorf("nv_inference_count is %v, want %v", got, tt.want)
			}
		})
	}
}

// Of a batch of an earlier scheduler a request may be known to run elsewhere: the
// outcomes of the others are still their own.
func TestOutcomesOfAnEarlierSchedulersBatchAreThoseOfItsRequests(t *testing.T) {
	l, w, set := startModel(t, newAnswers(), &modelconfig.Config{Name: "m", MaxBatchSize: 16})
	work := func(n uint64) infer.Work {
		return infer.Work{Request: infer.RequestID{Origin: 1, Number: n}, Attempt: 1}
	}
	l.Attach(6, infer.Held{Running: []infer.Running{{Batch: infer.BatchID{Epoch: 5, Number: 3}, Instance: infer.InstanceID{Worker: 6}, Units: []infer.Work{work(1)}}}}, w)
	l.Attach(slot0.Worker, infer.Held{Running: []infer.Running{
		{Batch: infer.BatchID{Epoch: 5, Number: 4}, Instance: slot0, Units: []infer.Work{work(1), work(2)}, BatchSizes: []int64{8, 3}},
	}}, w)
	l.Grant(infer.Grant{Instance: slot0, Model: model})
	l.InstanceFree(&infer.InstanceFree{
		Batch: infer.BatchID{Epoch: 5, Number: 4}, Instance: slot0, Executions: 1, Outcomes: []infer.Outcome{infer.Failed, infer.Succeeded}, Credits: 1,
	})
	if err := l.Submit(request(99, &counter{})); err != nil {
		t.Fatal(err)
	}
	<-w.orders // so that the completion has been counted
	for family, want := range map[string]float64{"nv_inference_request_success": 1, "nv_inference_count": 3} {
		if got := readings(t, set, family)[""]; got != want {
			t.Errorf("%s is %v, want %v", family, got, want)
		}
	}
}

// A batch of which one unit has responses to come is one execution; each unit
// counts when it ends, with its own outcome.
func TestUnitsOfABatchAreCountedAsTheyEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		last     infer.Outcome
		succeeds float64
	}{
		"both succeed":   {infer.Succeeded, 2},
		"the last fails": {infer.Failed, 1},
	} {
		t.Run(name, func(t *testing.T) {
			l, w, set := startModel(t, newAnswers(), &modelconfig.Config{Name: "m", MaxBatchSize: 16, Batching: new(modelconfig.DynamicBatching)})
			l.Grant(infer.Grant{Instance: slot0, Model: model}) // ready, but busy
			for n, rows := range map[uint64]int64{1: 3, 2: 5} {
				r := request(n, &counter{})
				r.BatchSize = rows
				if err := l.Submit(r); err != nil {
					t.Fatal(err)
				}
			}
			l.Grant(infer.Grant{Instance: slot0, Model: model, Credits: 1})
			b := <-w.orders
			works, rows := []infer.Work{}, b.Requests[1].BatchSize
			for _, r := range b.Requests {
				works = append(works, r.Work)
				r.Release()
			}
			counts := func() map[string]float64 {
				l.Queues() // by when the event has been counted
				values := make(map[string]float64)
				for _, family := range []string{"nv_inference_request_success", "nv_inference_count", "nv_inference_exec_count"} {
					values[family] = readings(t, set, family)[""]
				}
				return values
			}
			l.InstanceFree(&infer.InstanceFree{
				Batch: b.ID, Instance: slot0, Executions: 1, BatchSize: 8, Credits: 1,
				Outcomes: []infer.Outcome{infer.Succeeded, infer.Succeeded}, Ends: []infer.UnitEnd{infer.UnitMore, infer.UnitEnded},
			})
			want := map[string]float64{"nv_inference_request_success": 1, "nv_inference_count": float64(rows), "nv_inference_exec_count": 1}
			if diff := cmp.Diff(want, counts()); diff != "" {
				t.Errorf("with one unit to come (-want +got):\n%s", diff)
			}
			done := infer.UnitDone{Batch: b.ID, Instance: slot0, Work: works[0], Outcome: tt.last}
			l.UnitDone(done)
			l.UnitDone(done) // counts once
			want["nv_inference_request_success"] = tt.succeeds
			if tt.last == infer.Succeeded {
				want["nv_inference_count"] = 8
			}
			if diff := cmp.Diff(want, counts()); diff != "" {
				t.Errorf("with both ended (-want +got):\n%s", diff)
			}
			if n := pendingOf(t, set); n != 0 {
				t.Errorf("%v requests are pending", n)
			}
		})
	}
}

// Each iteration counts as a request of its own, as in Triton: its time since the
// request came, and since it began to wait for this one in the queue.
func TestIterationsCount(t *testing.T) {
	l, w, set := startModel(t, newAnswers(), &modelconfig.Config{Name: "m", MaxBatchSize: 4, Sequences: &modelconfig.SequenceBatching{
		Slots: 4, Iterative: true, MaxIdleMicros: 1_000_000,
	}})
	freed := new(counter)
	l.Grant(infer.Grant{Instance: slot0, Model: model, Credits: 1})
	if err := l.Submit(request(1, freed)); err != nil {
		t.Fatal(err)
	}
	for iteration := range uint32(3) {
		b := <-w.orders
		if got := b.Requests[0].Work.Iteration; got != iteration || b.Slots[0].Sequence.Start != (iteration == 0) {
			t.Errorf("iteration %d is %+v at %+v", iteration, b.Requests[0].Work, b.Slots)
		}
		if n := pendingOf(t, set); n != 0 {
			t.Errorf("%v requests are pending while it runs", n)
		}
		f := &infer.InstanceFree{Batch: b.ID, Instance: slot0, Executions: 1, BatchSize: 1, Credits: 1, Outcomes: []infer.Outcome{infer.Succeeded}}
		if iteration < 2 {
			f.Ends, f.Again = []infer.UnitEnd{infer.UnitAgain}, b.Requests
		} else {
			b.Requests[0].Release()
		}
		l.InstanceFree(f)
	}
	l.Queues() // by when the event has been counted
	for _, family := range []string{"nv_inference_request_success", "nv_inference_count", "nv_inference_exec_count"} {
		if n := readings(t, set, family)[""]; n != 3 {
			t.Errorf("%s is %v", family, n)
		}
	}
	if n := pendingOf(t, set); n != 0 || freed.value() != 1 {
		t.Errorf("%v requests are pending, inputs released %d times", n, freed.value())
	}
}

// What a deposed scheduler was to run again is released.
func TestRequestOfAnUnknownBatchIsReleased(t *testing.T) {
	l, _, _ := startModel(t, newAnswers(), &modelconfig.Config{Name: "m"})
	freed := new(counter)
	l.InstanceFree(&infer.InstanceFree{
		Batch: infer.BatchID{Epoch: 7, Number: 1}, Instance: slot0, Outcomes: make([]infer.Outcome, 1),
		Ends: []infer.UnitEnd{infer.UnitAgain}, Again: []*infer.Request{request(1, freed)},
	})
	l.Queues()
	if freed.value() != 1 {
		t.Errorf("released %d times", freed.value())
	}
}
