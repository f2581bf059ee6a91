package simulate

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/resources"
	"github.com/nereid-serving/nereid/services/scheduler/core"
	"github.com/nereid-serving/nereid/services/scheduler/decisionlog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// logged simulates a workload and returns the log of it.
func logged(t *testing.T, w *Workload, c Config) (*Report, []byte) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "log")
	header := decisionlog.Header{MaxRequests: w.Limits.MaxRequests, MaxBytes: w.Limits.MaxBytes}
	if r := w.Limits.RateLimit; r != nil {
		header.RateLimited, header.Resources = true, r.Counts.Texts()
	}
	log := decisionlog.New(decisionlog.Config{Path: path, Log: zap.NewNop(), Header: header})
	if err := log.Open(); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() { log.Run(ctx) })
	c.Recorder = log
	r := simulated(t, w, c)
	end()
	writing.Wait()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return r, text
}

// TestATraceIsSimulatedAsItWasRecorded has a scheduler in virtual time write a log,
// and holds that the log tells the same report, costs and ways, and that its
// simulation ends each request as it was.
func TestATraceIsSimulatedAsItWasRecorded(t *testing.T) {
	w, costs := synthetic(t, func(s *Synthetic) {
		s.Config = &modelconfig.Config{Name: "digits", MaxBatchSize: 8, Batching: &modelconfig.DynamicBatching{MaxQueueDelayMicros: 500}}
		s.Pattern, s.Rate, s.Requests, s.Deadline, s.Instances, s.Limits = Bursty, 5000, 20_000, 15*time.Millisecond, 2, core.Config{MaxRequests: 100}
	})
	for i := range w.Arrivals {
		w.Arrivals[i].Tenant, w.Arrivals[i].Share = "small", infer.Share{Band: 2, Minimum: 50, Weight: 1000}
		if i%3 == 0 {
			w.Arrivals[i].Tenant, w.Arrivals[i].Share = "large", infer.Share{Band: 1, Weight: 3000}
		}
		if i%10 == 0 {
			w.Arrivals[i].Canceled = w.Arrivals[i].At.Add(12 * time.Millisecond)
		}
	}
	way := Way{Before: 40 * time.Microsecond, After: 60 * time.Microsecond}
	want, text := logged(t, w, Config{Policy: Nereid, Costs: costs, Way: way})
	if want.Late+want.Canceled == 0 || sum(want.Refused) == 0 {
		t.Fatalf("the load is no test: %d late, %d canceled, refused %v", want.Late, want.Canceled, want.Refused)
	}
	trace, err := ReadTrace(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if got := (Way{Before: trace.Way.Before, After: trace.Way.After}); !cmp.Equal(got, way, cmp.AllowUnexported(Way{}, sample{})) {
		t.Errorf("ways %+v, want %+v", got, way)
	}
	names := cmpopts.IgnoreFields(Report{}, "Name")
	if diff := cmp.Diff(want, trace.Recorded, names, cmpopts.IgnoreUnexported(Report{})); diff != "" {
		t.Errorf("the log's report differs (-simulated +recorded):\n%s", diff)
	}
	again := simulated(t, trace.Workload, Config{Policy: Nereid, Costs: costs, Way: trace.Way})
	if diff := cmp.Diff(want, again, cmpopts.IgnoreUnexported(Report{})); diff != "" {
		t.Errorf("the simulation of the log differs (-recorded +simulated):\n%s", diff)
	}
	for i := range want.results {
		if want.results[i] != again.results[i] {
			t.Fatalf("request %d ended with %+v, simulated with %+v", i, want.results[i], again.results[i])
		}
	}
	for _, size := range []int64{1, 8} {
		if got, want := trace.Costs.of[device{"digits", "cpu"}].draw(source(), 0, 0, size), costs.of[device{"digits", "cpu"}].draw(source(), 0, 0, size); got != want {
			t.Errorf("a batch of %d takes %v by the log, took %v", size, got, want)
		}
	}
}

// TestATraceHasTheRateLimiter holds that a log's simulation takes turns for the
// resources that the log's scheduler had.
func TestATraceHasTheRateLimiter(t *testing.T) {
	limited := func(counts ...resources.Count) func(*Synthetic) {
		return func(s *Synthetic) {
			s.Config = &modelconfig.Config{Name: "digits", Groups: []modelconfig.InstanceGroup{
				{Name: "g", Count: 4, Priority: 1, Resources: []modelconfig.Resource{{Name: "r", Count: 2}}},
			}}
			s.Rate, s.Requests, s.Instances, s.Limits = 1500, 5000, 4, core.Config{RateLimit: &core.RateLimit{Counts: counts}}
		}
	}
	w, costs := synthetic(t, limited())
	want, text := logged(t, w, Config{Policy: Nereid, Costs: costs})
	trace, err := ReadTrace(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	again := simulated(t, trace.Workload, Config{Policy: Nereid, Costs: costs})
	if diff := cmp.Diff(want, again, cmpopts.IgnoreUnexported(Report{})); diff != "" {
		t.Errorf("the simulation of the log differs (-recorded +simulated):\n%s", diff)
	}
	trace.Workload.Pool(1, 4, costs)
	if pooled := simulated(t, trace.Workload, Config{Policy: Nereid, Costs: costs}); pooled.Mean != want.Mean {
		t.Errorf("other instances of the group take %v in the mean, want %v", pooled.Mean, want.Mean)
	}
	w, _ = synthetic(t, limited(resources.Count{Name: "r", Device: resources.EachDevice, Count: 8}))
	if free := simulated(t, w, Config{Policy: Nereid, Costs: costs}); free.Mean*2 > want.Mean {
		t.Errorf("requests take %v in the mean where one runs at a time, and %v where four do", want.Mean, free.Mean)
	}
}

// TestATraceMayHaveOtherInstances holds that an overload is gone with more devices.
func TestATraceMayHaveOtherInstances(t *testing.T) {
	w, costs := synthetic(t, func(s *Synthetic) { s.Rate, s.Requests, s.Deadline = 2500, 10_000, 20*time.Millisecond })
	_, text := logged(t, w, Config{Policy: Nereid, Costs: costs})
	trace, err := ReadTrace(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if share := float64(trace.Recorded.InTime) / 10_000; share > 0.5 {
		t.Fatalf("%v in time on one", share)
	}
	trace.Workload.Pool(2, 2, trace.Costs)
	if r := simulated(t, trace.Workload, Config{Policy: Nereid, Costs: trace.Costs}); r.InTime < 9950 {
		t.Errorf("%d of 10000 in time on four, refused %v", r.InTime, r.Refused)
	}
}

func TestATraceThatIsCutOffGivesWhatComesBefore(t *testing.T) {
	w, costs := synthetic(t, func(s *Synthetic) { s.Requests = 10_000 })
	_, text := logged(t, w, Config{Policy: Nereid, Costs: costs})
	trace, err := ReadTrace(bytes.NewReader(text[:len(text)*3/4]))
	if !errors.Is(err, decisionlog.ErrTruncated) || trace == nil {
		t.Fatalf("%v, want a truncated log", err)
	}
	if n := trace.Recorded.Arrivals; n < 1000 || n >= 10_000 || trace.Recorded.InTime < n-10 {
		t.Errorf("%d arrivals, %d in time", n, trace.Recorded.InTime)
	}
	for name, text := range map[string][]byte{"no log": []byte("no log"), "no requests": text[:200], "flipped": flipped(text)} {
		if trace, err := ReadTrace(bytes.NewReader(text)); errs.Of(err) != errs.ConfigInvalid || trace != nil || strings.TrimSpace(err.Error()) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func flipped(text []byte) []byte {
	text = bytes.Clone(text)
	text[len(text)/2] ^= 4
	return text
}
