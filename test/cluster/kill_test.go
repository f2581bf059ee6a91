package cluster

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/remote/leader"
	"github.com/nereid-serving/nereid/test/audit"
	"github.com/nereid-serving/nereid/test/load"
)

const (
	rate = 100 // requests per second
	// timeout is a request's deadline, and patient that where callers are to see
	// nothing: there a machine that stands still for seconds is no failure.
	timeout, patient = 2 * time.Second, 30 * time.Second
)

// row is one line of the table of what may die.
type row struct {
	name string
	// disturb harms the cluster and repairs it, and returns whom it harmed.
	disturb func(*scene) string
	// role is what another must take over; empty is none.
	role     string
	settings settings
	// deadline is the requests'; 0 is timeout.
	deadline time.Duration
	// allows reports whether callers may see the failure of a request after the
	// harm of a process.
	allows func(l load.Line, harmed string) bool
	// steady is a row in which NATS itself is not harmed. Where the machine has
	// it stand still for all that, callers may have to come back.
	steady bool
}

func rows() []row {
	return []row{
		{name: "gateway", disturb: killOne("gateway"), deadline: patient, allows: func(l load.Line, harmed string) bool {
			return l.Gateway == harmed && (l.Answers[0].Outcome == load.Lost || unavailable(l, harmed))
		}},
		{name: "scheduler", disturb: killHolder(leader.Pool("default")), role: leader.Pool("default"), allows: unavailable},
		{name: "worker", disturb: killOne("worker"), allows: unavailable},
		{name: "worker-scheduler", disturb: killWorkerAndScheduler, role: leader.Pool("default"), allows: unavailable},
		{name: "registry", disturb: killHolder(leader.Registry), role: leader.Registry, deadline: patient, allows: nothing},
		{name: "nats", disturb: killNATS, allows: nothing},
		{name: "nats-lost", disturb: loseNATS, settings: modelsComeAndGo(), allows: func(l load.Line, harmed string) bool {
			return strings.HasPrefix(harmed, "scheduler") && unavailable(l, harmed)
		}},
		{name: "nats-slow", disturb: slowNATS, allows: nothing, steady: true},
		{name: "nats-partition", disturb: partition, steady: true, allows: func(l load.Line, harmed string) bool {
			// A scheduler alone that is cut off is replaced by its standby.
			return strings.HasPrefix(harmed, "scheduler") && !strings.Contains(harmed, "+") && unavailable(l, harmed)
		}},
		{name: "worker-paused", disturb: pauseWorker, allows: unavailable},
		{name: "scheduler-paused", disturb: pauseScheduler, allows: unavailable},
		{name: "scheduler-back", disturb: outliveSuccessor, allows: unavailable},
	}
}

// modelsComeAndGo has the registry look for models, and gateways be ready while
// one that is new is not.
func modelsComeAndGo() settings {
	return settings{
		"registry": {"--model-control-mode", "poll", "--repository-poll-secs", "1"},
		"gateway":  {"--strict-readiness=false"},
	}
}

func nothing(load.Line, string) bool { return false }

// unavailable is an answer that says to come back, or that there was no time
// left for it.
func unavailable(l load.Line, _ string) bool {
	const unavailable, exceeded = 14, 4 // codes of gRPC
	a := l.Answers[0]
	code := errs.Reason(a.Reason).GRPC()
	return a.Outcome == load.Late ||
		a.Outcome == load.Failed && (code == unavailable || code == exceeded || a.Reason == string(errs.DeadlineUnmeetable))
}

// scene is a cluster under load.
type scene struct {
	*cluster
	load *load.Load
	// harmed are the disturbances so far, the last one last.
	harms []harm
	pulse pulse
}

// harm is one disturbance.
type harm struct {
	victim   string
	at       time.Time
	recovery time.Duration
	recovers bool
	takeover time.Duration
}

// strike notes who is harmed, and when.
func (s *scene) strike(victim string) {
	s.harms = append(s.harms, harm{victim: victim, at: time.Now()})
}

func (s *scene) any(service string, count int) *process {
	return s.processes[fmt.Sprintf("%s-%d", service, 1+rand.IntN(count))]
}

func (s *scene) again(p *process) {
	s.t.Helper()
	s.pass(rand.N(time.Second))
	p.start()
	p.ready()
}

func killOne(service string) func(*scene) string {
	return func(s *scene) string {
		p := s.any(service, map[string]int{"gateway": gateways, "worker": workers}[service])
		s.strike(p.name)
		p.kill()
		s.again(p)
		return p.name
	}
}

// killWorkerAndScheduler has a scheduler take over from one that may not have
// noticed that a worker died, since its next life already holds the lease.
func killWorkerAndScheduler(s *scene) string {
	worker := s.any("worker", workers)
	scheduler := s.processes[s.holder(leader.Pool("default"), "")]
	s.strike(scheduler.name)
	worker.kill()
	worker.start()
	s.pass(rand.N(500 * time.Millisecond))
	scheduler.kill()
	s.takeover(leader.Pool("default"), scheduler.name)
	worker.ready()
	s.again(scheduler)
	return scheduler.name
}

func killHolder(role string) func(*scene) string {
	return func(s *scene) string {
		p := s.processes[s.holder(role, "")]
		s.strike(p.name)
		p.kill()
		s.takeover(role, p.name)
		s.again(p)
		return p.name
	}
}

// takeover waits for another holder of a role, and notes how long that took.
func (s *scene) takeover(role, before string) {
	s.t.Helper()
	s.holder(role, before)
	h := &s.harms[len(s.harms)-1]
	h.takeover = time.Since(h.at)
}

func killNATS(s *scene) string {
	s.strike("nats")
	s.nats.kill()
	s.pass(rand.N(6 * time.Second)) // longer than some leases, shorter than others
	s.nats.start()
	return "nats"
}

// loseNATS starts NATS again with nothing of what it held, and then has every
// kind of change happen: a scheduler dies, a worker comes, models come and go.
func loseNATS(s *scene) string {
	s.t.Helper()
	s.strike("nats")
	s.nats.kill()
	if err := os.RemoveAll(s.state()); err != nil {
		s.t.Fatal(err)
	}
	s.pass(rand.N(6 * time.Second))
	s.nats.start()
	other := fmt.Sprintf("other-%d", s.nats.life)
	s.repository(other)
	s.serves(model, other)

	added := s.addOne("worker", fmt.Sprintf("added-%d", s.nats.life), s.worker)
	added.start()
	added.ready()
	s.runs(added.name, model, other)

	killHolder(leader.Pool("default"))(s)
	if err := os.RemoveAll(filepath.Join(s.dir, "models", other)); err != nil {
		s.t.Fatal(err)
	}
	s.serves(model)
	added.stop()
	delete(s.processes, added.name)
	return "nats"
}

func slowNATS(s *scene) string {
	s.strike("nats")
	for _, k := range s.links {
		k.set(false, 100*time.Millisecond)
	}
	s.pass(time.Second + rand.N(4*time.Second))
	for _, k := range s.links {
		k.set(false, 0)
	}
	return "nats"
}

// partition cuts all processes off, those of one service, or one of them.
func partition(s *scene) string {
	names := slices.Sorted(maps.Keys(s.links))
	one := names[rand.IntN(len(names))]
	switch service, _, _ := strings.Cut(one, "-"); rand.IntN(4) {
	case 0, 1:
		names = []string{one}
	case 2:
		names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, service) })
	}
	s.strike(strings.Join(names, "+"))
	for _, name := range names {
		s.links[name].set(true, 0)
	}
	s.pass(rand.N(8 * time.Second))
	for _, name := range names {
		s.links[name].set(false, 0)
	}
	return strings.Join(names, "+")
}

// pauseWorker has a worker come back with orders that are old by then.
func pauseWorker(s *scene) string {
	p := s.any("worker", workers)
	s.strike(p.name)
	p.signal(syscall.SIGSTOP)
	s.pass(pause())
	p.signal(syscall.SIGCONT)
	return p.name
}

// pauseScheduler has a scheduler come back after it was deposed.
func pauseScheduler(s *scene) string {
	p := s.processes[s.holder(leader.Pool("default"), "")]
	s.strike(p.name)
	p.signal(syscall.SIGSTOP)
	s.takeover(leader.Pool("default"), p.name)
	s.pass(rand.N(3 * time.Second))
	p.signal(syscall.SIGCONT)
	return p.name
}

// outliveSuccessor has a scheduler come back after it was deposed by one that has
// died since: nobody holds the pool, and it knows nothing of the other's term.
func outliveSuccessor(s *scene) string {
	role := leader.Pool("default")
	p := s.processes[s.holder(role, "")]
	s.strike(p.name)
	p.signal(syscall.SIGSTOP)
	s.takeover(role, p.name)
	successor := s.processes[s.holder(role, p.name)]
	s.pass(rand.N(time.Second))
	successor.kill()
	s.vacant(role)
	p.signal(syscall.SIGCONT)
	s.again(successor)
	return p.name
}

// pause is how long a worker is paused: NEREID_PAUSE, or else shortly, but
// longer than its lease.
func pause() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("NEREID_PAUSE")); err == nil {
		return d
	}
	return 8 * time.Second
}

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
	for service, role := range map[string]string{"registry": leader.Registry, "scheduler": leader.Pool("default")} {
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
		t.Run(r.name, func(t *testing.T) { r.run(t, n) })
	}
}

func (r row) run(t *testing.T, kills int) {
	s := &scene{cluster: start(t, r.settings)}
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
		Targets: s.targets, Model: model, Rate: rate, Timeout: cmp.Or(r.deadline, timeout), Prefix: r.name, Log: log,
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
	report := s.audit(path)
	r.judge(t, s, lines, report)
	r.publish(t, s, report)
}

// settle waits until the goodput is back and has been for a while.
func (s *scene) settle() {
	s.t.Helper()
	h := s.harms[len(s.harms)-1]
	for give := time.Now().Add(patience); ; {
		s.pass(500 * time.Millisecond)
		// What was sent lately has no answer yet.
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
	refused, starved := 0, 0
	for _, l := range lines {
		if len(l.Answers) != 1 || l.Answers[0].Outcome == load.OK || r.allows(l, s.harmedBefore(l)) {
			continue
		}
		if r.steady && unavailable(l, "") && s.stalledBefore(l) {
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
// before a request had its answer and then.
func (s *scene) stalledBefore(l load.Line) bool {
	at, from := time.Unix(0, l.Answers[0].Unix), time.Time{}
	for _, h := range s.harms {
		if !h.at.After(at) {
			from = h.at
		}
	}
	return s.pulse.stalled(from, at)
}

// harmedBefore is who was harmed last before a request had its answer.
func (s *scene) harmedBefore(l load.Line) string {
	victim := ""
	for _, h := range s.harms {
		if h.at.UnixNano() <= l.Answers[0].Unix {
			victim = h.victim
		}
	}
	return victim
}

// publish tells what was measured.
func (r row) publish(t *testing.T, s *scene, report audit.Report) {
	t.Helper()
	var recovery, takeover []time.Duration
	for _, h := range s.harms {
		recovery = append(recovery, h.recovery)
		if r.role != "" || h.takeover > 0 {
			takeover = append(takeover, h.takeover)
		}
	}
	twice := 0
	for _, v := range report.Violations {
		if v.Rule == audit.Once {
			twice++
		}
	}
	text := fmt.Sprintf("%s: %d times, %d requests, %d answered, failures %v, executed twice %d, violations %d, goodput back after %s, taken over after %s",
		r.name, len(s.harms), report.Requests, report.OK, report.Failures, twice, len(report.Violations), spread(recovery), spread(takeover))
	tell(t, text)
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
