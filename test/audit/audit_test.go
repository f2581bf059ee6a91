package audit_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/test/audit"
)

// Lines of the logs, by what they say.
const (
	answered = `{"id":"a","model":"m","answers":[{"outcome":"ok"}]}`
	failed   = `{"id":"a","model":"m","answers":[{"outcome":"failed","reason":"instance_crashed"}]}`
	lost     = `{"id":"a","model":"m","answers":[{"outcome":"lost"}]}`
	silent   = `{"id":"a","model":"m","answers":[]}`
	doubly   = `{"id":"a","model":"m","answers":[{"outcome":"ok"},{"outcome":"ok"}]}`
	wrong    = `{"id":"a","model":"m","answers":[{"outcome":"wrong"}]}`

	begin    = `{"event":"begin","incarnation":1,"request":"9-1","id":"a","epoch":3,"order":1,"model":"m"}`
	end      = `{"event":"end","incarnation":1,"request":"9-1","id":"a","epoch":3,"order":1,"model":"m","outcome":"succeeded","executions":1}`
	unrun    = `{"event":"end","incarnation":1,"request":"9-1","id":"a","epoch":3,"order":1,"model":"m","outcome":"cancelled"}`
	broke    = `{"event":"end","incarnation":1,"request":"9-1","id":"a","epoch":3,"order":1,"model":"m","outcome":"failed","executions":1}`
	again    = `{"event":"begin","incarnation":2,"request":"9-1","id":"a","epoch":3,"order":2,"model":"m"}`
	againEnd = `{"event":"end","incarnation":2,"request":"9-1","id":"a","epoch":3,"order":2,"model":"m","outcome":"succeeded","executions":1}`
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
		"no answer":                              {clients: []string{silent}, worker: []string{begin, end}, want: []string{audit.OneAnswer}},
		"two answers":                            {clients: []string{doubly}, worker: []string{begin, end}, want: []string{audit.OneAnswer}},
		"the answer to another":                  {clients: []string{wrong}, worker: []string{begin, end}, want: []string{audit.Right}},
		"an answer of nobody":                    {clients: []string{answered}, want: []string{audit.Founded}},
		"an answer of a failed execution":        {clients: []string{answered}, worker: []string{begin, broke}, want: []string{audit.Founded}},
		"executed twice":                         {clients: []string{answered}, worker: []string{begin, end, again, againEnd}, want: []string{audit.Once}},
		"executed again after the worker died":   {clients: []string{answered}, worker: []string{begin, again, againEnd}, want: []string{audit.Once}},
		"executed again after it was not run":    {clients: []string{answered}, worker: []string{begin, unrun, again, againEnd}},
		"executed twice on purpose":              {clients: []string{answered}, worker: []string{begin, again, againEnd}, idempotent: []string{"m"}},
		"one order twice":                        {clients: []string{answered}, worker: []string{begin, begin, end}, want: []string{audit.Once}},
		"an end without a begin":                 {clients: []string{lost}, worker: []string{end}, want: []string{audit.Terminated}, failures: map[string]int{"lost": 1}},
		"executed without being asked":           {worker: []string{begin, end}, want: []string{audit.Known}},
		"a line cut short by the writer's death": {clients: []string{answered}, worker: []string{begin, end, `{"event":"beg`}},
	} {
		t.Run(name, func(t *testing.T) {
			a := audit.Auditor{Idempotent: tt.idempotent}
			if err := a.Clients(strings.NewReader(strings.Join(tt.clients, "\n"))); err != nil {
				t.Fatal(err)
			}
			if err := a.Worker(strings.NewReader(strings.Join(tt.worker, "\n"))); err != nil {
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
	if err := a.Worker(strings.NewReader("nonsense\n" + begin)); err == nil {
		t.Error("nonsense passed as a log of executions")
	}
}
