// Package audit joins what clients and workers have written down, each for
// themselves, and tells what must never have been. It shares nothing with the
// services but the formats of the files.
package audit

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// sent is a line of a client's log: a request with every answer that came.
type sent struct {
	ID      string `json:"id"`
	Model   string `json:"model"`
	Answers []struct {
		Outcome string `json:"outcome"`
		Reason  string `json:"reason"`
	} `json:"answers"`
	text string
}

// executed is a line of a worker's log: the begin or the end of an execution of
// a request.
type executed struct {
	Event       string `json:"event"`
	Incarnation uint64 `json:"incarnation"`
	Request     string `json:"request"`
	ID          string `json:"id"`
	Epoch       uint64 `json:"epoch"`
	Order       uint64 `json:"order"`
	Model       string `json:"model"`
	Outcome     string `json:"outcome"`
	Executions  int    `json:"executions"`
	text        string
}

// Violation is something that must not be.
type Violation struct {
	// Rule is the rule that was broken, ID the client's id of the request.
	Rule, ID string
	// Lines are those of the logs that show it.
	Lines []string
}

// The rules.
const (
	OneAnswer  = "a request has exactly one answer"
	Right      = "an answer is that of its request"
	Once       = "no request is executed twice"
	Founded    = "no answer without an execution"
	Known      = "nothing is executed that nobody sent"
	Terminated = "an execution ends at most once, after it began"
)

// Report is what an audit found.
type Report struct {
	Requests, OK, Executions int
	// Twice are requests of idempotent models that were executed more than
	// once, which is allowed.
	Twice int
	// Failures are the requests without a result, by reason: that of the
	// server, or lost, late.
	Failures   map[string]int
	Violations []Violation
}

// Auditor collects logs.
type Auditor struct {
	// Idempotent are the models that may run a request twice.
	Idempotent []string

	requests []sent
	lines    []executed
}

// Clients takes in a log of requests.
func (a *Auditor) Clients(r io.Reader) error {
	return read(r, func(text string) error {
		s := sent{text: text}
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			return fmt.Errorf("%w in %s", err, text)
		}
		a.requests = append(a.requests, s)
		return nil
	})
}

// Worker takes in a log of executions. Its last line may be cut short by the
// death of its writer.
func (a *Auditor) Worker(r io.Reader) error {
	var cut string
	return read(r, func(text string) error {
		if cut != "" {
			return fmt.Errorf("not a line of an execution log: %s", cut)
		}
		e := executed{text: text}
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			cut = text
		} else {
			a.lines = append(a.lines, e)
		}
		return nil
	})
}

func read(r io.Reader, take func(string) error) error {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		if err := take(s.Text()); err != nil {
			return err
		}
	}
	return s.Err()
}

// execution is one request of one order.
type execution struct {
	model       string
	ran, worked bool // ran at all, as far as is known; ended with a result
	lines       []string
}

// Report joins the logs.
func (a *Auditor) Report() Report {
	report := Report{Requests: len(a.requests), Failures: make(map[string]int)}
	runs := a.executions(&report)
	known := make(map[string]bool)
	for _, s := range a.requests {
		known[s.ID] = true
		a.judge(&report, s, runs[s.ID])
	}
	for _, id := range slices.Sorted(maps.Keys(runs)) {
		for _, e := range runs[id] {
			if !known[id] {
				report.add(Known, id, e.lines...)
			}
		}
	}
	return report
}

// judge holds one request against the rules.
func (a *Auditor) judge(report *Report, s sent, runs []*execution) {
	ran, worked, lines := 0, 0, []string{s.text}
	for _, e := range runs {
		lines = append(lines, e.lines...)
		if e.ran {
			ran++
		}
		if e.worked {
			worked++
		}
	}
	report.Executions += ran
	switch {
	case ran > 1 && slices.Contains(a.Idempotent, s.Model):
		report.Twice++
	case ran > 1:
		report.add(Once, s.ID, lines...)
	}
	if len(s.Answers) != 1 {
		report.add(OneAnswer, s.ID, lines...)
		return
	}
	switch answer := s.Answers[0]; answer.Outcome {
	case "ok":
		report.OK++
		if worked == 0 {
			report.add(Founded, s.ID, lines...)
		}
	case "wrong":
		report.add(Right, s.ID, lines...)
	case "failed":
		report.Failures[answer.Reason]++
	default:
		report.Failures[answer.Outcome]++
	}
}

// executions are those of each request, by the client's id.
func (a *Auditor) executions(report *Report) map[string][]*execution {
	type key struct {
		incarnation, epoch, order uint64
		request                   string
	}
	begun := make(map[key]*execution)
	ended := make(map[key]bool)
	runs := make(map[string][]*execution)
	for _, e := range a.lines {
		k := key{e.Incarnation, e.Epoch, e.Order, e.Request}
		switch x := begun[k]; {
		case e.Event == "begin" && x == nil:
			// Until its end says otherwise: the worker may have died in it.
			x = &execution{model: e.Model, ran: true, worked: true, lines: []string{e.text}}
			begun[k] = x
			runs[e.ID] = append(runs[e.ID], x)
		case e.Event == "end" && x != nil && !ended[k]:
			ended[k] = true
			x.ran, x.worked = e.Executions > 0, e.Executions > 0 && e.Outcome == "succeeded"
			x.lines = append(x.lines, e.text)
		case e.Event == "begin": // the same order once more
			x.lines = append(x.lines, e.text)
			report.add(Once, e.ID, x.lines...)
		default:
			report.add(Terminated, e.ID, e.text)
		}
	}
	return runs
}

func (r *Report) add(rule, id string, lines ...string) {
	r.Violations = append(r.Violations, Violation{Rule: rule, ID: id, Lines: lines})
}

// String is the report for people.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d requests: %d answered, %d executions, %d of idempotent models repeated\n", r.Requests, r.OK, r.Executions, r.Twice)
	for _, reason := range slices.Sorted(maps.Keys(r.Failures)) {
		fmt.Fprintf(&b, "%d failed: %s\n", r.Failures[reason], reason)
	}
	fmt.Fprintf(&b, "%d violations\n", len(r.Violations))
	for _, v := range r.Violations {
		fmt.Fprintf(&b, "VIOLATION of %q by %s\n", v.Rule, v.ID)
		for _, line := range v.Lines {
			fmt.Fprintf(&b, "    %s\n", line)
		}
	}
	return b.String()
}
