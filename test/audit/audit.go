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
	"time"
)

// sent is a line of a client's log: a request with every response that came.
type sent struct {
	ID        string `json:"id"`
	Model     string `json:"model"`
	Sent      int64  `json:"sent_unix_ns"`
	Responses []struct {
		Unix    int64  `json:"unix_ns"`
		Outcome string `json:"outcome"`
		Reason  string `json:"reason"`
		Status  string `json:"status"`
	} `json:"responses"`
	text string
}

// unavailable is the status of a response that says to come back.
const unavailable = "Unavailable"

// executed is a line of a worker's log: the begin or the end of an execution of
// a request.
type executed struct {
	Event       string `json:"event"`
	Incarnation uint64 `json:"incarnation"`
	Request     string `json:"request"`
	ID          string `json:"id"`
	Iteration   uint32 `json:"iteration"`
	Epoch       uint64 `json:"epoch"`
	Batch       uint64 `json:"batch"`
	Model       string `json:"model"`
	Outcome     string `json:"outcome"`
	Executions  int    `json:"executions"`
	log         string
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
	OneResponse = "a request has exactly one response"
	Ends        = "a request without a deadline ends"
	Right       = "a response is that of its request"
	Once        = "no request is executed twice"
	Founded     = "no response without an execution"
	Known       = "nothing is executed that nobody sent"
	Terminated  = "an execution ends at most once, after it began"
	Caused      = "a request is unavailable only with the worker that had it"
)

// Report is what an audit found.
type Report struct {
	Requests, OK, Executions int
	// Batches are the executions of several requests at once.
	Batches int
	// Unbegun are the requests that failed with a worker that had not begun them.
	Unbegun int
	// Twice are requests of idempotent models that were executed more than
	// once, which is allowed.
	Twice int
	// Failures are the requests without a result, by reason: that of the
	// server, or lost, late.
	Failures   map[string]int
	Violations []Violation
}

// Loss is that a worker died, or stood still.
type Loss struct {
	// Log is the name of the worker's log, Time the last moment before the loss.
	Log  string
	Time time.Time
	// Room is how many requests the worker may have been given without having
	// begun them. No log tells of these.
	Room int
}

// Causes are what requests may be unavailable for.
type Causes struct {
	Losses []Loss
	// Undecided are the moments at which the last was lost that could tell what
	// has begun of the requests under way: each of them may fail.
	Undecided []time.Time
}

// Auditor collects logs.
type Auditor struct {
	// Idempotent are the models that may run a request twice.
	Idempotent []string
	// Steps are, by the names of ensembles, the models each of which executes a request
	// of theirs once.
	Steps map[string][]string
	// Causes are held against the requests that were unavailable; if it is nil
	// nobody knows them.
	Causes *Causes

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

// Worker takes in a log of executions under a name, that of one incarnation of a worker.
// Its last line may be cut short by the death of its writer.
func (a *Auditor) Worker(name string, r io.Reader) error {
	var cut string
	return read(r, func(text string) error {
		if cut != "" {
			return fmt.Errorf("not a line of an execution log: %s", cut)
		}
		e := executed{log: name, text: text}
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

// execution is one request of one batch.
type execution struct {
	log, model  string
	iteration   uint32
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
	if a.Causes != nil {
		a.judgeCauses(&report, runs)
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
	type part struct {
		model     string
		iteration uint32
	}
	ran, twice, lines := 0, false, []string{s.text}
	parts, worked := make(map[part]bool), make(map[string]bool)
	for _, e := range runs {
		lines = append(lines, e.lines...)
		if e.ran {
			ran++
			twice = twice || parts[part{e.model, e.iteration}]
			parts[part{e.model, e.iteration}] = true
		}
		if e.worked {
			worked[e.model] = true
		}
	}
	report.Executions += ran
	switch {
	case twice && slices.Contains(a.Idempotent, s.Model):
		report.Twice++
	case twice:
		report.add(Once, s.ID, lines...)
	}
	if len(s.Responses) != 1 {
		report.add(OneResponse, s.ID, lines...)
		return
	}
	switch response := s.Responses[0]; response.Outcome {
	case "ok":
		report.OK++
		if !all(a.models(s.Model), worked) {
			report.add(Founded, s.ID, lines...)
		}
	case "hung":
		report.add(Ends, s.ID, lines...)
	case "wrong":
		report.add(Right, s.ID, lines...)
	case "failed":
		report.Failures[response.Reason]++
	default:
		report.Failures[response.Outcome]++
	}
}

// models are those by which a request for a model is executed.
func (a *Auditor) models(model string) []string {
	if steps := a.Steps[model]; steps != nil {
		return steps
	}
	return []string{model}
}

func all(models []string, of map[string]bool) bool {
	return !slices.ContainsFunc(models, func(m string) bool { return !of[m] })
}

// judgeCauses holds the requests that were unavailable against what was lost.
func (a *Auditor) judgeCauses(report *Report, runs map[string][]*execution) {
	unbegun := make([][]sent, len(a.Causes.Losses))
	for _, s := range a.requests {
		if len(s.Responses) != 1 || s.Responses[0].Status != unavailable || a.Causes.undecided(s) {
			continue
		}
		var lines []string
		begun := make(map[string]bool)
		for _, e := range runs[s.ID] {
			lines = append(lines, e.lines...)
			begun[e.model] = true
		}
		switch last, lost := a.Causes.loss(s, runs[s.ID]); {
		case lost:
		case last >= 0 && !all(a.models(s.Model), begun): // of an ensemble some steps may have run
			unbegun[last] = append(unbegun[last], s)
			report.Unbegun++
		default:
			report.add(Caused, s.ID, append([]string{s.text}, lines...)...)
		}
	}
	for i, list := range unbegun {
		if len(list) <= a.Causes.Losses[i].Room {
			continue
		}
		for _, s := range list {
			report.add(Caused, s.ID, s.text)
		}
	}
}

// undecided reports whether a request was under way when the last was lost that
// could tell whether it had begun.
func (c *Causes) undecided(s sent) bool {
	return slices.ContainsFunc(c.Undecided, func(at time.Time) bool {
		return s.Sent <= at.UnixNano() && at.UnixNano() <= s.Responses[0].Unix
	})
}

// loss finds the last loss before a request's response, -1 if there was none, and
// whether the request had begun on a worker that was lost by then.
func (c *Causes) loss(s sent, runs []*execution) (last int, begun bool) {
	last = -1
	for i, l := range c.Losses {
		if l.Time.UnixNano() > s.Responses[0].Unix {
			continue
		}
		if last < 0 || l.Time.After(c.Losses[last].Time) {
			last = i
		}
		begun = begun || slices.ContainsFunc(runs, func(e *execution) bool { return e.log == l.Log })
	}
	return last, begun
}

// executions are those of each request, by the client's id.
func (a *Auditor) executions(report *Report) map[string][]*execution {
	type batch struct{ incarnation, epoch, order uint64 }
	type key struct {
		batch
		request string
	}
	sizes := make(map[batch]int)
	begun := make(map[key]*execution)
	ended := make(map[key]bool)
	runs := make(map[string][]*execution)
	for _, e := range a.lines {
		k := key{batch{e.Incarnation, e.Epoch, e.Batch}, e.Request}
		switch x := begun[k]; {
		case e.Event == "begin" && x == nil:
			// Until its end says otherwise: the worker may have died in it.
			x = &execution{log: e.log, model: e.Model, iteration: e.Iteration, ran: true, worked: true, lines: []string{e.text}}
			begun[k] = x
			if sizes[k.batch]++; sizes[k.batch] == 2 {
				report.Batches++
			}
			runs[e.ID] = append(runs[e.ID], x)
		case e.Event == "end" && x != nil && !ended[k]:
			ended[k] = true
			x.ran, x.worked = e.Executions > 0, e.Executions > 0 && e.Outcome == "succeeded"
			x.lines = append(x.lines, e.text)
		case e.Event == "begin": // the same batch once more
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
	fmt.Fprintf(&b, "%d requests: %d answered, %d executions, %d batches of several, %d of idempotent models repeated, %d unavailable with a worker that had not begun them\n",
		r.Requests, r.OK, r.Executions, r.Batches, r.Twice, r.Unbegun)
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
