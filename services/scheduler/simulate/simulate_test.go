package simulate

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/scheduler/core"
)

// synthetic is a workload of a model that takes a millisecond for a batch, and its
// costs.
func synthetic(t testing.TB, change func(*Synthetic)) (*Workload, *Costs) {
	t.Helper()
	one := Distribution{{1, 1}}
	s := &Synthetic{
		Model: "digits", Config: &modelconfig.Config{Name: "digits"}, Rate: 500, Pattern: Poisson, Requests: 50_000,
		BatchSizes: one, Elements: one, Devices: 1, Instances: 1, Kind: "cpu", Seed: 1,
	}
	change(s)
	c, err := ReadCosts(strings.NewReader("# measured\n\ndigits cpu 1 - 1ms\ndigits cpu 8 - 1.7ms\n"))
	if err != nil {
		t.Fatal(err)
	}
	return s.Workload(), c
}

func simulated(t testing.TB, w *Workload, c Config) *Report {
	t.Helper()
	r, err := Run(w, c)
	if err != nil {
		t.Fatal(err)
	}
	if ends := r.InTime + r.Late + sum(r.Refused) + sum(r.Failed) + r.Canceled + r.Unfinished; ends != r.Arrivals || r.Arrivals != len(w.Arrivals) {
		t.Errorf("%s: %d ends of %d arrivals, the workload has %d", r.Name, ends, r.Arrivals, len(w.Arrivals))
	}
	return r
}

func sum(by map[errs.Reason]int) (n int) {
	for _, one := range by {
		n += one
	}
	return n
}

// TestWaitsAreThoseOfQueueingTheory holds both policies against M/D/1: a mean wait
// of ρ/(2(1-ρ)) executions.
func TestWaitsAreThoseOfQueueingTheory(t *testing.T) {
	for _, load := range []float64{0.3, 0.5, 0.8} {
		w, costs := synthetic(t, func(s *Synthetic) { s.Rate, s.Requests = 1000*load, 100_000 })
		want := 1 + load/(2*(1-load)) // milliseconds
		for _, policy := range []Policy{Nereid, FIFO} {
			r := simulated(t, w, Config{Policy: policy, Costs: costs})
			if got := r.Mean.Seconds() * 1e3; math.Abs(got-want) > 0.04*want || r.InTime != r.Arrivals {
				t.Errorf("%s at a load of %v: %d in time after %.3f ms, want all after %.3f ms", policy, load, r.InTime, got, want)
			}
			if got := float64(r.Busy) / float64(time.Duration(r.Arrivals)*time.Millisecond); got != 1 || r.BusyInTime != 1 {
				t.Errorf("%s: busy for %v executions, %v of it in time", policy, got, r.BusyInTime)
			}
		}
	}
}

func TestAConstantRateBelowCapacityIsServed(t *testing.T) {
	w, costs := synthetic(t, func(s *Synthetic) {
		s.Pattern, s.Rate, s.Requests, s.Deadline = Constant, 950, 20_000, 1100*time.Microsecond
	})
	r := simulated(t, w, Config{Policy: Nereid, Costs: costs})
	if r.InTime != 20_000 || r.P50 != time.Millisecond || r.P99 != time.Millisecond {
		t.Errorf("%d of 20000 in time, p50 %v, p99 %v", r.InTime, r.P50, r.P99)
	}
	if r.Goodput < 949 || r.Goodput > 951 {
		t.Errorf("goodput %v, want 950", r.Goodput)
	}
}

func TestOverloadIsRefusedByOneAndLateByTheOther(t *testing.T) {
	w, costs := synthetic(t, func(s *Synthetic) { s.Rate, s.Deadline, s.Requests = 2000, 20*time.Millisecond, 20_000 })
	ours := simulated(t, w, Config{Policy: Nereid, Costs: costs})
	fifo := simulated(t, w, Config{Policy: FIFO, Costs: costs})
	if ours.Goodput < 950 || ours.Refused[errs.DeadlineUnmeetable] < 9000 || ours.BusyInTime < 0.99 {
		t.Errorf("nereid: goodput %v, refused %v, %v of the busy time in time", ours.Goodput, ours.Refused, ours.BusyInTime)
	}
	if fifo.Late < 19_000 || len(fifo.Refused) > 0 || fifo.Goodput > 20 {
		t.Errorf("fifo: %d late, refused %v, goodput %v", fifo.Late, fifo.Refused, fifo.Goodput)
	}
	ours.Compare(w, fifo)
	if ours.FalseRefusals.Requests > 20 {
		t.Errorf("%d refusals are false where fifo answers %d in time", ours.FalseRefusals.Requests, fifo.InTime)
	}
}

// TestFalseRefusalsAreFound has a scheduler refuse what another would serve: it is
// told that executions take ten times as long, by the first that it sees.
func TestFalseRefusalsAreFound(t *testing.T) {
	w, costs := synthetic(t, func(s *Synthetic) {
		s.Pattern, s.Rate, s.Deadline, s.Requests = Constant, 500, 3*time.Millisecond, 1000
	})
	slow := NewCosts()
	slow.Add("digits", "cpu", 0, 1, 10*time.Millisecond)
	refusing := simulated(t, w, Config{Policy: Nereid, Costs: slow})
	fifo := simulated(t, w, Config{Policy: FIFO, Costs: costs})
	refusing.Compare(w, fifo)
	if n := sum(refusing.Refused); n < 500 || refusing.FalseRefusals.Requests != n || refusing.FalseRefusals.Of != float64(n)/1000 {
		t.Errorf("%+v false of %d refused, want all", *refusing.FalseRefusals, n)
	}
}

// A queue that has fallen behind, by an execution that took long, does not stay
// behind in small batches: that would halve the goodput.
func TestOverloadFillsBatches(t *testing.T) {
	batched := &modelconfig.Config{Name: "digits", MaxBatchSize: 8, Batching: &modelconfig.DynamicBatching{}}
	w, _ := synthetic(t, func(s *Synthetic) {
		s.Config, s.Rate, s.Requests, s.Deadline = batched, 6000, 60_000, 50*time.Millisecond
	})
	costs := NewCosts()
	for i := range 100 {
		spread := time.Duration(i) * 2 * time.Microsecond
		costs.Add("digits", "cpu", 0, 1, 900*time.Microsecond+spread)
		costs.Add("digits", "cpu", 0, 8, 1600*time.Microsecond+spread)
	}
	costs.Add("digits", "cpu", 0, 8, 3*time.Millisecond)
	r := simulated(t, w, Config{Policy: Nereid, Costs: costs})
	// The instance can do 8 in 1.8 ms.
	if r.MeanBatch < 7.5 || r.Goodput < 4000 || r.BusyInTime < 0.99 {
		t.Errorf("batches of %v, goodput %v, %v of the busy time in time", r.MeanBatch, r.Goodput, r.BusyInTime)
	}
}

// Executions that take five times as long now and then, alone or a few after each
// other, do not keep batches small for longer than they last: what is lost is the
// time that they take.
func TestLongExecutionsDoNotKeepBatchesSmall(t *testing.T) {
	batched := &modelconfig.Config{Name: "digits", MaxBatchSize: 8, Batching: &modelconfig.DynamicBatching{}}
	const peak = 8 / 1.7e-3
	for name, tt := range map[string]struct {
		long     func(rng *rand.Rand, at time.Duration) bool
		load     float64
		deadline time.Duration
	}{
		"one in 200":           {func(rng *rand.Rand, _ time.Duration) bool { return rng.IntN(200) == 0 }, 2.3, 7 * time.Millisecond},
		"30 ms of each second": {func(_ *rand.Rand, at time.Duration) bool { return at%time.Second < 30*time.Millisecond }, 5.5, 50 * time.Millisecond},
	} {
		rng, costs := source(), NewCosts()
		for ms := range 10_000 {
			at := time.Duration(ms) * time.Millisecond
			for size := range int64(8) {
				took := (0.9 + 0.1*float64(size+1)) * (1 + 0.1*rng.NormFloat64())
				if tt.long(rng, at) {
					took *= 5
				}
				costs.add(device{"digits", "cpu"}, 0, size+1, sample{begin.Add(at), time.Duration(took * 1e6)})
			}
		}
		w, _ := synthetic(t, func(s *Synthetic) {
			s.Config, s.Rate, s.Requests, s.Deadline = batched, tt.load*peak, int(10*tt.load*peak), tt.deadline
		})
		r := simulated(t, w, Config{Policy: Nereid, Costs: costs, SameTime: true, Way: Way{Before: 20 * time.Microsecond, After: 30 * time.Microsecond}})
		if r.MeanBatch < 7.3 || r.Goodput < 0.88*peak {
			t.Errorf("%s: batches of %.2f, %.2f of the peak", name, r.MeanBatch, r.Goodput/peak)
		}
	}
}

func TestBatchesFill(t *testing.T) {
	batched := &modelconfig.Config{Name: "digits", MaxBatchSize: 8, Batching: &modelconfig.DynamicBatching{MaxQueueDelayMicros: 2000}}
	w, costs := synthetic(t, func(s *Synthetic) { s.Config, s.Rate, s.Requests = batched, 4000, 40_000 })
	for _, policy := range []Policy{Nereid, FIFO} {
		r := simulated(t, w, Config{Policy: policy, Costs: costs})
		if r.InTime != 40_000 || r.MeanBatch < 7 || r.P99 > 20*time.Millisecond {
			t.Errorf("%s: %d in time, batches of %v, p99 %v", policy, r.InTime, r.MeanBatch, r.P99)
		}
	}
	more, _ := synthetic(t, func(s *Synthetic) {
		s.Config, s.Rate, s.Requests, s.Devices, s.Instances = batched, 20_000, 40_000, 3, 2
	})
	for _, policy := range []Policy{Nereid, FIFO} {
		if r := simulated(t, more, Config{Policy: policy, Costs: costs}); r.InTime != 40_000 || r.P99 > 20*time.Millisecond {
			t.Errorf("%s on six instances: %d in time, p99 %v", policy, r.InTime, r.P99)
		}
	}
}

func TestBoundsRefuseUnderBothPolicies(t *testing.T) {
	bounded := &modelconfig.Config{Name: "digits", MaxBatchSize: 1, Batching: &modelconfig.DynamicBatching{
		DefaultPolicy: modelconfig.QueuePolicy{MaxQueueSize: 10},
	}}
	w, costs := synthetic(t, func(s *Synthetic) { s.Config, s.Rate, s.Requests = bounded, 2000, 10_000 })
	pool, _ := synthetic(t, func(s *Synthetic) { s.Rate, s.Requests, s.Limits.MaxRequests = 2000, 10_000, 10 })
	for _, policy := range []Policy{Nereid, FIFO} {
		if r := simulated(t, w, Config{Policy: policy, Costs: costs}); r.Refused[errs.MaxQueueSize] < 4500 || r.P99 > 12*time.Millisecond {
			t.Errorf("%s: refused %v, p99 %v", policy, r.Refused, r.P99)
		}
		if r := simulated(t, pool, Config{Policy: policy, Costs: costs}); r.Refused[errs.QueueFull] < 4500 || r.P99 > 12*time.Millisecond {
			t.Errorf("%s: refused %v, p99 %v", policy, r.Refused, r.P99)
		}
	}
}

func TestShapesDoNotMix(t *testing.T) {
	texts := &modelconfig.Config{
		Name: "digits", MaxBatchSize: 8, Batching: &modelconfig.DynamicBatching{}, Inputs: []modelconfig.IO{{Name: "ids", Dims: tensor.Shape{-1}}},
	}
	w, _ := synthetic(t, func(s *Synthetic) {
		s.Config, s.Elements, s.Rate, s.Requests = texts, Distribution{{16, 1}, {128, 1}}, 300, 20_000
	})
	costs, err := ReadCosts(strings.NewReader("digits cpu 1 16 1ms\ndigits cpu 1 128 4ms\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, policy := range []Policy{Nereid, FIFO} {
		r := simulated(t, w, Config{Policy: policy, Costs: costs})
		if perRequest := r.Busy / time.Duration(r.Arrivals); r.InTime != 20_000 || perRequest > 2600*time.Microsecond || r.MeanBatch > 2 {
			t.Errorf("%s: %v for each request, in batches of %v", policy, perRequest, r.MeanBatch)
		}
	}
}

func TestCanceledRequestsCountForNobody(t *testing.T) {
	w, costs := synthetic(t, func(s *Synthetic) { s.Rate, s.Requests = 1500, 5000 })
	for i := range w.Arrivals {
		w.Arrivals[i].Canceled = w.Arrivals[i].At.Add(5 * time.Millisecond)
	}
	for _, policy := range []Policy{Nereid, FIFO} {
		r := simulated(t, w, Config{Policy: policy, Costs: costs})
		if r.Canceled < 3000 || r.InTime < 1000 || len(r.Refused) > 0 {
			t.Errorf("%s: %d canceled, %d in time, refused %v", policy, r.Canceled, r.InTime, r.Refused)
		}
	}
}

func TestALostWorkerFailsWhatItRuns(t *testing.T) {
	w, costs := synthetic(t, func(s *Synthetic) { s.Rate, s.Requests, s.Devices, s.Pattern = 1500, 3000, 2, Constant })
	w.Changes = append(w.Changes, Change{begin.Add(time.Second), core.Event{Kind: core.WorkerLost, Instance: infer.InstanceID{Worker: 1}}})
	for _, policy := range []Policy{Nereid, FIFO} {
		r := simulated(t, w, Config{Policy: policy, Costs: costs})
		if r.Failed[errs.InstanceCrashed] != 1 || r.InTime != 2999 || r.P99 < 100*time.Millisecond {
			t.Errorf("%s: failed %v, %d in time, p99 %v", policy, r.Failed, r.InTime, r.P99)
		}
	}
}

func TestEqualSeedsGiveEqualReports(t *testing.T) {
	report := func(seed uint64, policy Policy) *Report {
		w, costs := synthetic(t, func(s *Synthetic) {
			s.Pattern, s.Rate, s.Requests, s.Deadline, s.Seed = Bursty, 900, 20_000, 30*time.Millisecond, seed
		})
		costs.Add("digits", "cpu", 0, 1, 2*time.Millisecond)
		return simulated(t, w, Config{Policy: policy, Costs: costs, Way: Way{Before: 20 * time.Microsecond, After: 30 * time.Microsecond}, Seed: seed})
	}
	for _, policy := range []Policy{Nereid, FIFO} {
		first := report(7, policy)
		if diff := cmp.Diff(first, report(7, policy), cmp.AllowUnexported(Report{}, result{})); diff != "" {
			t.Errorf("%s: two runs of one seed differ:\n%s", policy, diff)
		}
		if cmp.Equal(first, report(8, policy), cmpopts.IgnoreUnexported(Report{})) {
			t.Errorf("%s: two seeds give one report", policy)
		}
	}
}

func TestArrivalsHaveTheirRate(t *testing.T) {
	for _, pattern := range []Pattern{Poisson, Bursty, Constant} {
		w, _ := synthetic(t, func(s *Synthetic) { s.Pattern, s.Rate, s.Requests = pattern, 1000, 200_000 })
		last := begin
		for _, a := range w.Arrivals {
			if a.At < last {
				t.Fatalf("%s: an arrival at %v after one at %v", pattern, a.At, last)
			}
			last = a.At
		}
		if rate := 200_000 / last.Sub(begin).Seconds(); rate < 960 || rate > 1040 {
			t.Errorf("%s: %v requests a second, want 1000", pattern, rate)
		}
	}
}

func TestCostsOfOtherBatchSizesLieOnALine(t *testing.T) {
	costs := NewCosts()
	costs.Add("digits", "cpu", 0, 1, time.Millisecond)
	costs.Add("digits", "cpu", 0, 5, 3*time.Millisecond)
	of := costs.of[device{"digits", "cpu"}]
	for size, want := range map[int64]time.Duration{1: time.Millisecond, 3: 2 * time.Millisecond, 5: 3 * time.Millisecond, 9: 5 * time.Millisecond} {
		if got := of.draw(source(), 0, 0, size).Round(time.Microsecond); got != want {
			t.Errorf("a batch of %d takes %v, want %v", size, got, want)
		}
	}
	if got := of.draw(source(), 0, 9, 5); got != 3*time.Millisecond {
		t.Errorf("an unknown shape takes %v, want that of the nearest", got)
	}
}

func TestCostsOfTheSameTimeAreDrawn(t *testing.T) {
	const usual, long = time.Millisecond, 50 * time.Millisecond
	costs, d := NewCosts(), device{"digits", "cpu"}
	for i := range 1000 {
		took := usual
		if i >= 500 && i < 510 {
			took = long
		}
		costs.add(d, 0, 1, sample{begin.Add(time.Duration(i) * time.Millisecond), took})
	}
	rng := source()
	for i, want := range map[int]time.Duration{0: usual, 495: usual, 505: long, 515: usual, 2000: usual} {
		if got := costs.of[d].draw(rng, begin.Add(time.Duration(i)*time.Millisecond), 0, 1); got != want {
			t.Errorf("after %d ms a batch takes %v, want %v", i, got, want)
		}
	}
}

func TestMistakesAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		"":                       "are empty",
		"digits cpu 8 1ms":       "line 1",
		"\ndigits cpu 0 - 1ms":   "line 2",
		"digits cpu 1 large 1ms": `"large"`,
		"digits cpu 1 - fast":    `"fast"`,
		"digits cpu 1 - -1ms":    `"-1ms"`,
	} {
		if _, err := ReadCosts(strings.NewReader(text)); errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	for _, text := range []string{"", "0", "1:", "1:0", "1:-1", "1:NaN", "a"} {
		if d, err := ParseDistribution(text); errs.Of(err) != errs.ConfigInvalid {
			t.Errorf("%q: %v, %v", text, d, err)
		}
	}
	w, _ := synthetic(t, func(*Synthetic) {})
	other := NewCosts()
	other.Add("digits", "gpu", 0, 1, time.Millisecond)
	if _, err := Run(w, Config{Policy: Nereid, Costs: other}); errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), "those on gpu") {
		t.Errorf("%v, want that the costs are of another device", err)
	}
}

// BenchmarkRequests measures a simulated request, arrivals drawn before.
func BenchmarkRequests(b *testing.B) {
	config := &modelconfig.Config{Name: "digits", MaxBatchSize: 8, Batching: &modelconfig.DynamicBatching{}}
	for _, policy := range []Policy{Nereid, FIFO} {
		b.Run(string(policy), func(b *testing.B) {
			w, costs := synthetic(b, func(s *Synthetic) {
				s.Config, s.Rate, s.Requests, s.Deadline, s.Instances = config, 12_000, b.N, 50*time.Millisecond, 4
			})
			b.ReportAllocs()
			b.ResetTimer()
			simulated(b, w, Config{Policy: policy, Costs: costs, Clock: mono.New()})
		})
	}
}

func source() *rand.Rand { return rand.New(rand.NewPCG(1, 1)) }

// Under overload tenants get what their weights say, as from the scheduler that serves. First in,
// first out knows no tenants.
func TestTenantsGetTheirSharesInASimulation(t *testing.T) {
	w, costs := synthetic(t, func(s *Synthetic) {
		s.Config = &modelconfig.Config{Name: "digits"}
		s.Pattern, s.Rate, s.Requests, s.Deadline, s.Limits = Poisson, 4000, 20_000, 100*time.Millisecond, core.Config{MaxRequests: 1000}
	})
	for i := range w.Arrivals {
		w.Arrivals[i].Tenant, w.Arrivals[i].Share = "light", infer.Share{Band: 1, Weight: 1000}
		if i%2 == 0 {
			w.Arrivals[i].Tenant, w.Arrivals[i].Share = "heavy", infer.Share{Band: 1, Weight: 3000}
		}
	}
	r := simulated(t, w, Config{Policy: Nereid, Costs: costs})
	heavy, light := r.Tenants["heavy"], r.Tenants["light"]
	if heavy == nil || light == nil || heavy.Arrivals+light.Arrivals != r.Arrivals || heavy.InTime+light.InTime != r.InTime {
		t.Fatalf("%+v and %+v of %+v", heavy, light, r)
	}
	if ratio := float64(heavy.InTime) / float64(light.InTime); ratio < 2.5 || ratio > 3.5 {
		t.Errorf("%d to %d requests in time, want 3 to 1", heavy.InTime, light.InTime)
	}
	r = simulated(t, w, Config{Policy: FIFO, Costs: costs})
	if ratio := float64(r.Tenants["heavy"].InTime) / float64(r.Tenants["light"].InTime); ratio < 0.8 || ratio > 1.25 {
		t.Errorf("first in, first out: %+v and %+v", r.Tenants["heavy"], r.Tenants["light"])
	}
}

// A recording gives the requests of its models at their times, on as many instances as the
// configurations say.
func TestARecordingIsAWorkload(t *testing.T) {
	group := func(n int) []modelconfig.InstanceGroup {
		return []modelconfig.InstanceGroup{{Name: "g", Count: n, Kind: modelconfig.KindCPU}}
	}
	r := &Recorded{
		Models: []RecordedModel{{&modelconfig.Config{Name: "a", Groups: group(1)}, "cpu"}, {&modelconfig.Config{Name: "b", Groups: group(3)}, "gpu"}},
		Requests: []RecordedRequest{
			{Offset: 2 * time.Millisecond, Model: 1, Request: Arrival{BatchSize: 2, Tenant: "x"}},
			{Offset: time.Millisecond, Model: 0, Request: Arrival{BatchSize: 1}, Deadline: 5 * time.Millisecond},
		},
		Devices: 2,
	}
	w := r.Workload()
	count := make(map[string]int)
	for _, c := range w.Changes {
		if g := c.Event.Grant; g != nil {
			count[g.Model.Name+" on "+g.Device]++
		}
	}
	if diff := cmp.Diff(map[string]int{"a on cpu": 2, "b on gpu": 6}, count); diff != "" {
		t.Errorf("instances (-want +got):\n%s", diff)
	}
	want := []Arrival{
		{At: begin.Add(time.Millisecond), Model: 0, Origin: 1, BatchSize: 1, Deadline: begin.Add(6 * time.Millisecond)},
		{At: begin.Add(2 * time.Millisecond), Model: 1, Origin: 1, BatchSize: 2, Tenant: "x"},
	}
	if diff := cmp.Diff(want, w.Arrivals); diff != "" {
		t.Errorf("arrivals (-want +got):\n%s", diff)
	}
}
