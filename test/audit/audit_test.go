package audit_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/test/audit"
)

// Lines of the logs, by what they say.
const (
	answered = `{"id":"a","model":"m","responses":[{"outcome":"ok"}]}`
	failed   = `{"id":"a","model":"m","responses":[{"outcome":"failed","reason":"instance_crashed"}]}`
	lost     = `{"id":"a","model":"m","responses":[{"outcome":"lost"}]}`
	silent   = `{"id":"a","model":"m","responses":[]}`
	doubly   = `{"id":"a","model":"m","responses":[{"outcome":"ok"},{"outcome":"ok"}]}`
	wrong    = `{"id":"a","model":"m","responses":[{"outcome":"wrong"}]}`
	hung     = `{"id":"a","model":"m","responses":[{"outcome":"hung"}]}`

	composed = `{"id":"a","model":"e","responses":[{"outcome":"ok"}]}`

	begin    = `{"event":"begin","incarnation":1,"request":"9-1","id":"a","epoch":3,"batch":1,"model":"m"}`
	end      = `{"event":"end","incarnation":1,"request":"9-1","id":"a","epoch":3,"batch":1,"model":"m","outcome":"succeeded","executions":1}`
	unrun    = `{"event":"end","incarnation":1,"request":"9-1","id":"a","epoch":3,"batch":1,"model":"m","outcome":"canceled"}`
	broke    = `{"event":"end","incarnation":1,"request":"9-1","id":"a","epoch":3,"batch":1,"model":"m","outcome":"failed","executions":1}`
	second   = `{"event":"begin","incarnation":1,"request":"9-2","id":"a","epoch":3,"batch":4,"model":"n"}`
	again    = `{"event":"begin","incarnation":2,"request":"9-1","id":"a","epoch":3,"batch":2,"model":"m"}`
	iterated = `{"event":"begin","incarnation":2,"request":"9-1","id":"a","iteration":1,"epoch":3,"batch":2,"model":"m"}`
	againEnd = `{"event":"end","incarnation":2,"request":"9-1","id":"a","epoch":3,"batch":2,"model":"m","outcome":"succeeded","executions":1}`
)

func TestRules(t *testing.T) {
	for name, tt := range map[string]struct {
		clients, worker []string
		idempotent      []string
		want            []string
		failures        map[string]int
	}{
		"all is well":                            {clients: []string{answered}, worker: []string{begin, end}},
		"a failure with its reason":              {clients: []string{failed}, worker: []string{begin}, failures: map[string]int{"instance_crashed": 1}},
		"a lost connection":                      {clients: []string{lost}, failures: map[string]int{"lost": 1}},
		"no response":                            {clients: []string{silent}, worker: []string{begin, end}, want: []string{audit.OneResponse}},
		"two responses":                          {clients: []string{doubly}, worker: []string{begin, end}, want: []string{audit.OneResponse}},
		"the response to another":                {clients: []string{wrong}, worker: []string{begin, end}, want: []string{audit.Right}},
		"a request that hangs":                   {clients: []string{hung}, worker: []string{begin, end}, want: []string{audit.Ends}},
		"a response of nobody":                   {clients: []string{answered}, want: []string{audit.Founded}},
		"a response of a failed execution":       {clients: []string{answered}, worker: []string{begin, broke}, want: []string{audit.Founded}},
		"executed twice":                         {clients: []string{answered}, worker: []string{begin, end, again, againEnd}, want: []string{audit.Once}},
		"executed again after the worker died":   {clients: []string{answered}, worker: []string{begin, again, againEnd}, want: []string{audit.Once}},
		"executed again after it was not run":    {clients: []string{answered}, worker: []string{begin, unrun, again, againEnd}},
		"executed twice on purpose":              {clients: []string{answered}, worker: []string{begin, again, againEnd}, idempotent: []string{"m"}},
		"two iterations":                         {clients: []string{answered}, worker: []string{begin, end, iterated, againEnd}},
		"an iteration twice":                     {clients: []string{answered}, worker: []string{iterated, againEnd, strings.Replace(iterated, `"batch":2`, `"batch":3`, 1)}, want: []string{audit.Once}},
		"one batch twice":                        {clients: []string{answered}, worker: []string{begin, begin, end}, want: []string{audit.Once}},
		"an end without a begin":                 {clients: []string{lost}, worker: []string{end}, want: []string{audit.Terminated}, failures: map[string]int{"lost": 1}},
		"executed without being asked":           {worker: []string{begin, end}, want: []string{audit.Known}},
		"a line cut short by the writer's death": {clients: []string{answered}, worker: []string{begin, end, `{"event":"beg`}},
		"both steps of an ensemble": {
			clients: []string{composed}, worker: []string{begin, end, second},
		},
		"a step of an ensemble that did not run": {clients: []string{composed}, worker: []string{begin, end}, want: []string{audit.Founded}},
		"a step of an ensemble twice": {
			clients: []string{composed}, worker: []string{begin, end, again, againEnd, second}, want: []string{audit.Once},
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := audit.Auditor{Idempotent: tt.idempotent, Steps: map[string][]string{"e": {"m", "n"}}}
			if err := a.Clients(strings.NewReader(strings.Join(tt.clients, "\n"))); err != nil {
				t.Fatal(err)
			}
			if err := a.Worker("w", strings.NewReader(strings.Join(tt.worker, "\n"))); err != nil {
				t.Fatal(err)
			}
			report := a.Report()
			var got []string
			for _, v := range report.Violations {
				got = append(got, v.Rule)
				if len(v.Lines) == 0 {
					t.Errorf("the violation of %q shows no lines", v.Rule)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("violations (-want +got):\n%s\n%s", diff, report)
			}
			if tt.failures == nil {
				tt.failures = map[string]int{}
			}
			if diff := cmp.Diff(tt.failures, report.Failures); diff != "" {
				t.Errorf("failures (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLogsThatAreNone(t *testing.T) {
	var a audit.Auditor
	if err := a.Clients(strings.NewReader("nonsense")); err == nil {
		t.Error("nonsense passed as a log of requests")
	}
	if err := a.Worker("w", strings.NewReader("nonsense\n"+begin)); err == nil {
		t.Error("nonsense passed as a log of executions")
	}
}

// sentAt is the line of a request that was sent and answered at these seconds.
func sentAt(id string, sent, answered int64, response string) string {
	return fmt.Sprintf(`{"id":%q,"model":"m","sent_unix_ns":%d,"responses":[{"unix_ns":%d,%s}]}`, id, sent*1e9, answered*1e9, response)
}

// begunAt is the line of an execution that begins.
func begunAt(incarnation int, id string) string {
	return fmt.Sprintf(`{"event":"begin","incarnation":%d,"request":"9-%s","id":%q,"epoch":3,"batch":%d,"model":"m"}`, incarnation, id, id, incarnation)
}

func TestUnavailableNeedsAWorkerThatWasLost(t *testing.T) {
	const (
		crashed = `"outcome":"failed","reason":"instance_crashed","status":"Unavailable"`
		late    = `"outcome":"failed","reason":"deadline_queue","status":"DeadlineExceeded"`
	)
	lost := func(seconds int64, room int) audit.Loss {
		return audit.Loss{Log: "lost", Time: time.Unix(seconds, 0), Room: room}
	}
	for name, tt := range map[string]struct {
		clients    []string
		lost, well []string // the executions of the worker that is lost, and of one that is not
		causes     audit.Causes
		want       []string // the ids of requests that were unavailable for nothing
		unbegun    int
	}{
		"begun on the worker that was lost": {
			clients: []string{sentAt("a", 1, 3, crashed)}, lost: []string{begunAt(1, "a")}, causes: audit.Causes{Losses: []audit.Loss{lost(2, 0)}},
		},
		"begun on another": {
			clients: []string{sentAt("a", 1, 3, crashed)}, well: []string{begunAt(2, "a")}, causes: audit.Causes{Losses: []audit.Loss{lost(2, 9)}}, want: []string{"a"},
		},
		"answered before the loss": {
			clients: []string{sentAt("a", 1, 2, crashed)}, lost: []string{begunAt(1, "a")}, causes: audit.Causes{Losses: []audit.Loss{lost(3, 9)}}, want: []string{"a"},
		},
		"nothing was lost": {
			clients: []string{sentAt("a", 1, 3, crashed)}, lost: []string{begunAt(1, "a")}, want: []string{"a"},
		},
		"on its way to the worker that was lost": {
			clients: []string{sentAt("a", 1, 3, crashed)}, causes: audit.Causes{Losses: []audit.Loss{lost(2, 1)}}, unbegun: 1,
		},
		"more than can have been on their way": {
			clients: []string{sentAt("a", 1, 3, crashed), sentAt("b", 1, 3, crashed)},
			causes:  audit.Causes{Losses: []audit.Loss{lost(2, 1)}}, want: []string{"a", "b"}, unbegun: 2,
		},
		"more than on their way to the one of two that was lost last": {
			clients: []string{sentAt("a", 1, 5, crashed), sentAt("b", 1, 5, crashed)},
			causes:  audit.Causes{Losses: []audit.Loss{lost(4, 1), lost(2, 1)}}, want: []string{"a", "b"}, unbegun: 2,
		},
		"on their way to each of two that were lost": {
			clients: []string{sentAt("a", 1, 3, crashed), sentAt("b", 1, 5, crashed)}, causes: audit.Causes{Losses: []audit.Loss{lost(2, 1), lost(4, 1)}}, unbegun: 2,
		},
		"under way when nobody could tell any more": {
			clients: []string{sentAt("a", 1, 3, crashed)}, causes: audit.Causes{Undecided: []time.Time{time.Unix(2, 0)}},
		},
		"sent since": {
			clients: []string{sentAt("a", 3, 4, crashed)}, causes: audit.Causes{Undecided: []time.Time{time.Unix(2, 0)}}, want: []string{"a"},
		},
		"answered before": {
			clients: []string{sentAt("a", 1, 2, crashed)}, causes: audit.Causes{Undecided: []time.Time{time.Unix(3, 0)}}, want: []string{"a"},
		},
		"a deadline": {clients: []string{sentAt("a", 1, 3, late)}},
	} {
		t.Run(name, func(t *testing.T) {
			a := audit.Auditor{Causes: &tt.causes}
			if err := a.Clients(strings.NewReader(strings.Join(tt.clients, "\n"))); err != nil {
				t.Fatal(err)
			}
			for log, lines := range map[string][]string{"lost": tt.lost, "well": tt.well} {
				if err := a.Worker(log, strings.NewReader(strings.Join(lines, "\n"))); err != nil {
					t.Fatal(err)
				}
			}
			report := a.Report()
			var got []string
			for _, v := range report.Violations {
				if v.Rule != audit.Caused {
					t.Errorf("violation of %q", v.Rule)
				}
				got = append(got, v.ID)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || report.Unbegun != tt.unbegun {
				t.Errorf("%d not begun, want %d; unavailable for nothing (-want +got):\n%s\n%s", report.Unbegun, tt.unbegun, diff, report)
			}
		})
	}
}

func TestBatchesOfSeveralAreCounted(t *testing.T) {
	line := func(event, request string, order int) string {
		return fmt.Sprintf(`{"event":%q,"incarnation":1,"request":%q,"id":%q,"epoch":3,"batch":%d,"model":"m","outcome":"succeeded","executions":1}`, event, request, request, order)
	}
	var a audit.Auditor
	lines := []string{
		line("begin", "1", 1), line("begin", "2", 1), line("begin", "3", 1), line("end", "1", 1), line("begin", "4", 2),
		line("begin", "5", 3), line("begin", "6", 3),
	}
	if err := a.Worker("w", strings.NewReader(strings.Join(lines, "\n"))); err != nil {
		t.Fatal(err)
	}
	if got := a.Report().Batches; got != 2 {
		t.Errorf("%d batches of several requests, want 2", got)
	}
}
