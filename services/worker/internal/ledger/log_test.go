package ledger_test

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/worker/internal/ledger"
)

func lines(t *testing.T, path string) []ledger.Line {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []ledger.Line
	for s := bufio.NewScanner(f); s.Scan(); {
		var line ledger.Line
		if err := json.Unmarshal(s.Bytes(), &line); err != nil {
			t.Fatalf("%v in %s", err, s.Bytes())
		}
		all = append(all, line)
	}
	return all
}

func TestLogHasALineForEachRequestThatBeginsAndEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "executions")
	for range 2 { // a worker that starts again goes on in its file
		log := ledger.NewLog(path, "w")
		if err := log.Open(); err != nil {
			t.Fatal(err)
		}
		o := &infer.Batch{ID: infer.BatchID{Epoch: 3, Number: 7}, Instance: infer.InstanceID{Worker: 11, Slot: 2}, Requests: []*infer.Request{
			{Work: infer.Work{Request: infer.RequestID{Origin: 5, Number: 1}, Attempt: 2}, ID: "a"},
			{Work: infer.Work{Request: infer.RequestID{Origin: 5, Number: 2}, Attempt: 1, Iteration: 3}, ID: "b"},
		}}
		e := log.Begin(o, infer.ModelRef{Name: "m", Version: 4, Generation: 6})
		log.End(e, []infer.Outcome{infer.Succeeded, infer.Canceled}, 1)
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
	}
	begun := ledger.Line{
		Event: "begin", Worker: "w", Incarnation: 11, Slot: 2, Request: "5-1", ID: "a", Attempt: 2,
		Epoch: 3, Batch: 7, Model: "m", Version: 4, Generation: 6,
	}
	other := begun
	other.Request, other.ID, other.Attempt, other.Iteration = "5-2", "b", 1, 3
	ended, canceled := begun, other
	ended.Event, ended.Outcome, ended.Executions = "end", "succeeded", 1
	canceled.Event, canceled.Outcome, canceled.Executions = "end", "canceled", 1
	want := []ledger.Line{begun, other, ended, canceled}
	want = append(want, want...)
	if diff := cmp.Diff(want, lines(t, path), cmpopts.IgnoreFields(ledger.Line{}, "UnixNanos")); diff != "" {
		t.Errorf("the log (-want +got):\n%s", diff)
	}
}

func TestLogThatCannotBeWritten(t *testing.T) {
	if err := ledger.NewLog(filepath.Join(t.TempDir(), "none", "executions"), "w").Open(); errs.Of(err) != errs.ConfigInvalid {
		t.Errorf("Open = %v", err)
	}
}
