package explain_test

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/gateway/internal/explain"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
)

const second = mono.Time(time.Second)

func wall(t mono.Time) time.Time { return time.Unix(0, int64(t)).UTC() }

func served(n uint64, client, tenant string) *path.Outcome {
	return &path.Outcome{
		Request: infer.RequestID{Origin: 7, Number: n}, ClientID: client, Protocol: "grpc", Model: infer.ModelID{Name: "m"}, Version: 3, BatchSize: 2, Tenant: tenant,
		Received: second, Started: second + 1e6, Ended: second + 10e6, Finished: second + 11e6, Deadline: second + 20e6, Responses: 1, Predicted: 1.5,
		Execution: infer.Execution{
			Batch: infer.BatchID{Epoch: 9, Number: 4}, Instance: infer.InstanceID{Worker: 5, Slot: 6}, BatchSize: 8,
			Waited: 3 * time.Millisecond, Input: time.Millisecond, Ran: 4 * time.Millisecond, Cost: 1250 * time.Microsecond,
		},
	}
}

func TestAServedRequestIsExplained(t *testing.T) {
	r := explain.New(10, wall)
	r.Add(served(1, "mine", ""))
	want := &infer.Explanation{
		RequestID: "7-1", ID: "mine", Protocol: "grpc", Model: "m", Version: 3, Received: wall(second), Outcome: "good", Deadline: 0.02, Total: 0.011, Responses: 1,
		Spent: []infer.Span{
			{What: "receive, decode and check", Seconds: 0.001},
			{What: "wait in the scheduler's queue and for the instance", Seconds: 0.003},
			{What: "gather the inputs of the batch", Seconds: 0.001},
			{What: "run the model", Seconds: 0.004},
			{What: "go between gateway, scheduler and worker", Seconds: 0.001},
			{What: "encode and send the response", Seconds: 0.001},
		},
		Batch: &infer.ExplainedBatch{ID: "9-4", Worker: 5, Instance: 6, Size: 8, Own: 2}, PredictedCost: 1.5, Cost: 1.25,
	}
	for _, id := range []string{"mine", "7-1"} {
		got, err := r.Find(infer.ExplainQuestion{Request: id, Every: true})
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", id, err, diff)
		}
	}
}

func TestARefusedRequestIsExplained(t *testing.T) {
	r := explain.New(10, wall)
	r.Add(&path.Outcome{
		Request: infer.RequestID{Origin: 7, Number: 1}, Model: infer.ModelID{Name: "m"}, Received: second, Started: second + 1e6, Ended: second + 2e6, Finished: second + 2e6,
		Reason: errs.DeadlineUnmeetable, Err: errs.New(errs.DeadlineUnmeetable, "too late").WithRetry(3 * time.Second),
	})
	got, err := r.Find(infer.ExplainQuestion{Request: "7-1", Every: true})
	if err != nil || got.Outcome != "deadline_unmeetable" || got.Message != "too late" || got.RetryAfter != 3 || got.Batch != nil || len(got.Spent) != 2 {
		t.Errorf("%v: %+v", err, got)
	}
}

func TestLateRequestsAreToldAsSuch(t *testing.T) {
	r := explain.New(10, wall)
	late := served(1, "", "")
	late.Deadline = late.Ended - 1
	r.Add(late)
	if got, err := r.Find(infer.ExplainQuestion{Request: "7-1", Every: true}); err != nil || got.Outcome != "late" {
		t.Errorf("%v: %+v", err, got)
	}
}

func TestTheTextOfABugIsNotTold(t *testing.T) {
	r := explain.New(10, wall)
	o := served(1, "", "")
	o.Reason, o.Err = errs.Bug, errs.New(errs.Bug, "at address 10.0.0.1")
	r.Add(o)
	if got, err := r.Find(infer.ExplainQuestion{Request: "7-1", Every: true}); err != nil || got.Message != "internal error" {
		t.Errorf("%v: %+v", err, got)
	}
}

func TestTheNewestAreRemembered(t *testing.T) {
	r := explain.New(3, wall)
	for n := range uint64(5) {
		o := served(n, "same", "")
		o.Version = int64(n)
		r.Add(o)
	}
	if got, err := r.Find(infer.ExplainQuestion{Request: "same", Every: true}); err != nil || got.Version != 4 {
		t.Errorf("%v: %+v", err, got)
	}
	for n, there := range map[string]bool{"7-1": false, "7-2": true, "7-3": true, "7-4": true} {
		if _, err := r.Find(infer.ExplainQuestion{Request: n, Every: true}); (err == nil) != there || err != nil && errs.Of(err) != errs.RequestUnknown {
			t.Errorf("%s: %v", n, err)
		}
	}
	explain.New(0, wall).Add(served(1, "", "")) // remembers none
}

func TestTenantsAreToldOfTheirOwnRequestsAlone(t *testing.T) {
	r := explain.New(10, wall)
	r.Add(served(1, "id", "acme"))
	r.Add(served(2, "id", "small"))
	for tenant, want := range map[string]string{"acme": "7-1", "small": "7-2"} {
		if got, err := r.Find(infer.ExplainQuestion{Request: "id", Tenant: tenant}); err != nil || got.RequestID != want {
			t.Errorf("%s: %v: %+v", tenant, err, got)
		}
	}
	if _, err := r.Find(infer.ExplainQuestion{Request: "7-1", Tenant: "small"}); errs.Of(err) != errs.RequestUnknown {
		t.Error(err)
	}
}

// What clients choose, an id or a name in an error, is remembered as a short copy of its own.
func TestWhatClientsChooseIsRememberedInShort(t *testing.T) {
	const most, long = 1000, 1 << 20
	r := explain.New(most, wall)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for n := range uint64(most) {
		o := served(n+1, strings.Repeat("i", long)+strconv.FormatUint(n, 10), "")
		o.ClientID = o.ClientID[:long] // of a larger memory
		o.Reason, o.Err = errs.ShapeMismatch, errs.Wrap(errs.ShapeMismatch, errors.New(o.ClientID), "unexpected input '%s'", o.ClientID)
		r.Add(o)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > most*4<<10 {
		t.Errorf("%d requests are remembered in %d bytes", most, grown)
	}
	got, err := r.Find(infer.ExplainQuestion{Request: strings.Repeat("i", long), Every: true})
	if err != nil || got.RequestID != "7-1000" || len(got.ID) != 256 || len(got.Message) != 1024 {
		t.Errorf("the newest: %v, %v", err, got)
	}
	runtime.KeepAlive(r)
}

// A search goes on where it was while other requests end.
func TestOldRequestsAreFoundWhileOthersEnd(t *testing.T) {
	r := explain.New(2000, wall)
	for n := range uint64(1500) {
		r.Add(served(n+1, "", ""))
	}
	var ending sync.WaitGroup
	ending.Go(func() {
		for n := range uint64(400) {
			r.Add(served(2000+n, "", ""))
		}
	})
	for range 20 {
		if got, err := r.Find(infer.ExplainQuestion{Request: "7-1", Every: true}); err != nil || got.RequestID != "7-1" {
			t.Fatalf("%v: %+v", err, got)
		}
	}
	ending.Wait()
	if _, err := r.Find(infer.ExplainQuestion{Request: "7-9999", Every: true}); errs.Of(err) != errs.RequestUnknown {
		t.Errorf("a request that there was none of: %v", err)
	}
}

// A request that nobody knows is searched for in all gateways: few are at a time.
func TestFewRequestsAreExplainedAtATime(t *testing.T) {
	store, err := bus.Open(t.Context(), bus.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	ctx, stop := context.WithCancel(t.Context())
	answered := make(chan error, 1)
	go func() { answered <- store.Answer(ctx, bus.AskGateways, func([]byte) []byte { return nil }) }()
	r := explain.New(10, wall)
	const clients = 200
	results := make(chan error, clients)
	for range clients {
		go func() {
			_, err := r.Explain(t.Context(), store, infer.ExplainQuestion{Request: "1-1", Every: true})
			results <- err
		}()
	}
	counts := map[errs.Reason]int{}
	for range clients {
		counts[errs.Of(<-results)]++
	}
	if counts[errs.QueueFull] == 0 || counts[errs.RequestUnknown] == 0 || counts[errs.QueueFull]+counts[errs.RequestUnknown] != clients {
		t.Errorf("of %d requests at once: %v", clients, counts)
	}
	if _, err := r.Explain(t.Context(), store, infer.ExplainQuestion{Request: "1-1", Every: true}); errs.Of(err) != errs.RequestUnknown {
		t.Errorf("one more: %v", err)
	}
	stop()
	if err := <-answered; err != nil {
		t.Error(err)
	}
}
