package cluster

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/test/audit"
	"github.com/nereid-serving/nereid/test/load"
)

const (
	rate = 100 // requests per second, of all models
	// timeout is a request's deadline, and patient that where callers are to see
	// nothing: there a machine that stands still for seconds is no failure.
	timeout, patient = 2 * time.Second, 30 * time.Second
	// promised is by when the goodput is back after a fault. How often it was not is
	// reported, and judged by who knows the machine.
	promised = 10 * time.Second
	// quick is up to how many kills of each row leave out those that take long.
	quick = 2
)

// kills is how often each row is tried.
func kills(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("NEREID_KILLS"))
	if err != nil || n < 1 {
		t.Skip("NEREID_KILLS is not set: run make kill-test")
	}
	return n
}

// TestStandbysTakeOver kills the holders of roles, with nothing else there.
func TestStandbysTakeOver(t *testing.T) {
	n := kills(t)
	for service, role := range map[string]string{"registry": control.RegistryRole, "scheduler": control.PoolRole("default")} {
		t.Run(service, func(t *testing.T) {
			s := &scene{cluster: prepare(t, nil)}
			for i := range 2 {
				p := s.processes[fmt.Sprintf("%s-%d", service, i+1)]
				p.start()
				p.ready()
			}
			for range n {
				s.pass(rand.N(time.Second))
				killHolder(role)(s)
			}
			var takeover []time.Duration
			for _, h := range s.harms {
				takeover = append(takeover, h.takeover)
			}
			tell(t, fmt.Sprintf("%s alone: %d times, taken over after %s", service, n, spread(takeover)))
		})
	}
}

func TestKills(t *testing.T) {
	n := kills(t)
	for _, r := range rows() {
		if r.slow && n <= quick {
			continue
		}
		t.Run(r.name, func(t *testing.T) { r.run(t, n) })
	}
}

func (r row) run(t *testing.T, kills int) {
	s := &scene{cluster: r.prepare(t), room: r.room}
	path := filepath.Join(s.dir, "requests")
	log, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if r.steady {
		watched := make(chan error, 1)
		go func() { watched <- s.pulse.watch(ctx, s.store) }()
		defer func() {
			cancel()
			if err := <-watched; err != nil {
				t.Error(err)
			}
		}()
	}
	s.load = load.Start(ctx, load.Config{
		Targets: s.targets, Traffic: append(traffic(), r.traffic...), Timeout: cmp.Or(r.deadline, timeout), Prefix: r.name, Log: log,
	})
	for range kills {
		s.pass(time.Second + rand.N(time.Second))
		r.disturb(s)
		s.settle()
	}
	cancel()
	lines := s.load.Wait()
	for i := range s.harms {
		until := time.Unix(0, lines[len(lines)-1].Sent)
		if i+1 < len(s.harms) {
			until = s.harms[i+1].at
		}
		s.harms[i].recovery, s.harms[i].recovers = load.Recovery(lines, s.harms[i].at, until)
	}
	report := s.audit(path, s.causes)
	r.judge(t, s, lines, report)
	r.publish(t, s, report)
}

// prepare starts the row's cluster.
func (r row) prepare(t *testing.T) *cluster {
	t.Helper()
	c := prepare(t, r.settings)
	for _, name := range r.without {
		delete(c.processes, name)
	}
	models := served()
	for _, further := range r.traffic {
		models = append(append(models, steps()[further.Model]...), further.Model)
	}
	slices.Sort(models)
	models = slices.Compact(models)
	for _, model := range models {
		c.repository(model)
	}
	c.start(models)
	return c
}

// settle waits until the goodput is back and has been for a while.
func (s *scene) settle() {
	s.t.Helper()
	h := s.harms[len(s.harms)-1]
	for give := time.Now().Add(patience); ; {
		s.pass(500 * time.Millisecond)
		// What was sent lately has no response yet.
		now := time.Now().Add(-timeout)
		if answered := s.load.Answered(); answered.Before(now) {
			now = answered
		}
		if now.Sub(h.at) < time.Second {
			continue
		}
		if _, ok := load.Recovery(s.load.Lines(), h.at, now); ok {
			return
		}
		if time.Now().After(give) {
			s.t.Fatalf("waited in vain for the goodput after the harm of %s; the last requests:\n%s", h.victim, last(s.load.Lines()))
		}
	}
}

// judge holds what happened against the promises.
func (r row) judge(t *testing.T, s *scene, lines []load.Line, report audit.Report) {
	t.Helper()
	if len(report.Violations) > 0 {
		t.Errorf("%s", report)
	}
	if report.Batches == 0 {
		t.Error("no batch had several requests: nothing is known of batches")
	}
	refused, starved := 0, 0
	for _, l := range lines {
		if len(l.Responses) != 1 || l.Responses[0].Outcome == load.OK || l.Responses[0].Outcome == load.Hung || unavailable(l) || r.allows != nil && r.allows(l, s.harmedBefore(l)) {
			continue
		}
		if r.steady && overdue(l, "") && s.stalledBefore(l) {
			starved++
			continue
		}
		if refused++; refused <= 20 {
			t.Errorf("not allowed after the harm of %s: %+v", s.harmedBefore(l), l)
		}
	}
	if refused > 20 {
		t.Errorf("and %d more", refused-20)
	}
	if starved > 0 {
		t.Logf("%d requests failed after NATS stood still by itself for more than %s: the machine is too slow to judge them", starved, stalling)
	}
}

// stalledBefore reports whether NATS stood still by itself between the last harm
// before a request had its response and then.
func (s *scene) stalledBefore(l load.Line) bool {
	at, from := time.Unix(0, l.Responses[0].Unix), time.Time{}
	for _, h := range s.harms {
		if !h.at.After(at) {
			from = h.at
		}
	}
	return s.pulse.stalled(from, at)
}

// harmedBefore is who was harmed last before a request had its response.
func (s *scene) harmedBefore(l load.Line) string {
	victim := ""
	for _, h := range s.harms {
		if h.at.UnixNano() <= l.Responses[0].Unix {
			victim = h.victim
		}
	}
	return victim
}

// publish tells what was measured.
func (r row) publish(t *testing.T, s *scene, report audit.Report) {
	t.Helper()
	var recovery, takeover []time.Duration
	slow := 0
	for _, h := range s.harms {
		if recovery = append(recovery, h.recovery); h.recovery > promised {
			slow++
		}
		if r.role != "" || h.takeover > 0 {
			takeover = append(takeover, h.takeover)
		}
	}
	text := fmt.Sprintf("%s: %d times, %d requests, %d answered, failures %v (%d not begun), batches of several %d, executed twice %d, violations %d, goodput back after %s, %d times later than %v, taken over after %s",
		r.name, len(s.harms), report.Requests, report.OK, report.Failures, report.Unbegun, report.Batches, count(report, audit.Once), len(report.Violations), spread(recovery), slow, promised, spread(takeover))
	tell(t, text)
}

// count is how often a rule was broken.
func count(report audit.Report, rule string) int {
	n := 0
	for _, v := range report.Violations {
		if v.Rule == rule {
			n++
		}
	}
	return n
}

// tell keeps what was measured.
func tell(t *testing.T, text string) {
	t.Helper()
	t.Log(text)
	path := os.Getenv("NEREID_KILL_REPORT")
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fmt.Fprintln(f, text)
}

// spread is the middle, the tenth from the top and the worst of a list.
func spread(list []time.Duration) string {
	if len(list) == 0 {
		return "-"
	}
	slices.Sort(list)
	at := func(q float64) time.Duration { return list[int(q*float64(len(list)-1))].Round(10 * time.Millisecond) }
	return fmt.Sprintf("%v (p50), %v (p90), %v (worst)", at(0.5), at(0.9), at(1))
}
