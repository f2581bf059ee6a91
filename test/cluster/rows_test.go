package cluster

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/test/audit"
	"github.com/nereid-serving/nereid/test/load"
)

// row is one line of the table of what may die.
type row struct {
	name string
	// disturb harms the cluster and repairs it, and returns whom it harmed.
	disturb func(*scene) string
	// role is what another must take over; empty is none.
	role     string
	settings settings
	// without are processes that this row has not.
	without []string
	// traffic is that of further models.
	traffic []load.Traffic
	// room is how many more requests a worker may have been given and not begun than
	// of every row's models.
	room int
	// deadline is the requests'; 0 is timeout.
	deadline time.Duration
	// allows reports whether callers may see the failure of a request after the
	// harm of a process; nil allows none. Requests that were unavailable are the
	// auditor's.
	allows func(l load.Line, harmed string) bool
	// steady is a row in which NATS itself is not harmed. Where the machine has
	// it stand still for all that, callers may have to come back.
	steady bool
	// slow rows are left out of a quick run.
	slow bool
}

func rows() []row {
	return []row{
		{name: "gateway", disturb: killOne("gateway"), deadline: patient, allows: lostWithItsGateway},
		{name: "gateway-stops", disturb: stopGateway, deadline: patient},
		{
			name: "gateway-stops-with-calls", disturb: stopGateway, deadline: patient, room: 2 * len(steps()[calling]), slow: true,
			traffic: []load.Traffic{{Model: calling, Rate: rate / 5, Endless: true}},
		},
		{
			name: "calls", disturb: killDuringCalls, deadline: patient, room: 2 * len(steps()[calling]), slow: true,
			traffic: []load.Traffic{{Model: calling, Rate: rate / 5, Endless: true}},
			allows:  lostWithItsGateway,
		},
		{name: "scheduler", disturb: killHolder(control.PoolRole("default")), role: control.PoolRole("default"), allows: overdue},
		{name: "worker", disturb: killOne("worker"), deadline: patient},
		{name: "worker-scheduler", disturb: killWorkerAndScheduler, role: control.PoolRole("default"), allows: overdue},
		{
			name: "worker-scheduler-alone", disturb: killWorkerAndOnlyScheduler, without: []string{"scheduler-2"}, deadline: patient,
		},
		{
			name: "worker-cut-off-scheduler", disturb: cutWorkerOffAndKillScheduler, role: control.PoolRole("default"), deadline: patient,
			traffic: []load.Traffic{{Model: long, Rate: 0.4}},
		},
		{
			name: "stub", disturb: killStub, deadline: patient, room: stubs,
			traffic: []load.Traffic{{Model: scripted, Rate: rate / 2}},
			allows: func(l load.Line, harmed string) bool {
				return l.Model == scripted && harmed == "stub" && l.Responses[0].Reason == string(errs.StubUnhealthy)
			},
		},
		{
			name: "steps", disturb: killBetweenSteps, deadline: patient, room: 2 * len(steps()[composed]),
			traffic: []load.Traffic{{Model: composed, Rate: rate / 2}},
		},
		{name: "registry", disturb: killHolder(control.RegistryRole), role: control.RegistryRole, deadline: patient},
		{name: "nats", disturb: killNATS, deadline: patient},
		{name: "nats-lost", disturb: loseNATS, settings: modelsComeAndGo(), deadline: patient, allows: func(l load.Line, harmed string) bool {
			return strings.HasPrefix(harmed, "scheduler") && overdue(l, harmed)
		}},
		{name: "nats-slow", disturb: slowNATS, steady: true},
		{name: "nats-partition", disturb: partition, steady: true, allows: func(l load.Line, harmed string) bool {
			// A scheduler alone that is cut off is replaced by its standby.
			return strings.HasPrefix(harmed, "scheduler") && !strings.Contains(harmed, "+") && overdue(l, harmed)
		}},
		{name: "worker-paused", disturb: pauseWorker, deadline: patient},
		{name: "scheduler-paused", disturb: pauseScheduler, allows: overdue},
		{name: "scheduler-back", disturb: outliveSuccessor, allows: overdue},
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

// unavailable is a response that says to come back.
func unavailable(l load.Line) bool { return l.Responses[0].Status == codes.Unavailable.String() }

// lostWithItsGateway is a request whose connection broke with the gateway that was killed.
func lostWithItsGateway(l load.Line, harmed string) bool {
	return l.Gateway == harmed && l.Responses[0].Outcome == load.Lost
}

// overdue is a response that there was no time left for the request, or that none
// came in time.
func overdue(l load.Line, _ string) bool {
	a := l.Responses[0]
	return a.Outcome == load.Late || a.Status == codes.DeadlineExceeded.String() || a.Reason == string(errs.DeadlineUnmeetable)
}

// scene is a cluster under load.
type scene struct {
	*cluster
	load *load.Load
	// harmed are the disturbances so far, the last one last.
	harms  []harm
	causes audit.Causes
	pulse  pulse
	room   int // of the row
}

// harm is one disturbance.
type harm struct {
	victim   string
	at       time.Time
	recovery time.Duration
	recovers bool
	takeover time.Duration
}

// strike notes who is harmed, and when: at any moment, or, as batches are short,
// while a burst is on its way.
func (s *scene) strike(victim string) {
	if s.load != nil && rand.IntN(2) == 0 {
		select {
		case <-s.load.Burst():
			s.pass(rand.N(20 * time.Millisecond))
		case <-s.t.Context().Done():
		}
	}
	s.harms = append(s.harms, harm{victim: victim, at: time.Now()})
}

// loses notes that a worker is lost, and what it may have been given.
func (s *scene) loses(worker *process) {
	s.causes.Losses = append(s.causes.Losses, audit.Loss{Log: executions(worker.name, worker.incarnation), Time: time.Now(), Room: underWay + s.room})
}

// undecided notes that nobody can tell from now on what has begun of the
// requests under way: neither of those at the scheduler's last moment, nor of
// those that its gateways sent until they saw its end.
func (s *scene) undecided(scheduler *process) {
	s.causes.Undecided = append(s.causes.Undecided, time.Now())
	<-scheduler.exited
	s.pass(20 * time.Millisecond)
	s.causes.Undecided = append(s.causes.Undecided, time.Now())
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
		if service == "worker" {
			s.loses(p)
		}
		p.kill()
		s.again(p)
		return p.name
	}
}

// stopGateway has a gateway stop in good order that has requests, alone or while
// something else is killed.
func stopGateway(s *scene) string {
	s.t.Helper()
	p := s.any("gateway", gateways)
	s.strike(p.name)
	p.signal(syscall.SIGTERM)
	s.pass(rand.N(50 * time.Millisecond))
	switch len(s.harms) % 5 {
	case 1:
		worker := s.any("worker", workers)
		s.loses(worker)
		worker.kill()
		defer s.again(worker)
	case 2:
		scheduler := s.processes[s.holder(control.PoolRole("default"), "")]
		scheduler.signal(syscall.SIGKILL)
		s.undecided(scheduler) // a worker has died lately, and what it had begun
		defer s.again(scheduler)
	case 3:
		registry := s.processes[s.holder(control.RegistryRole, "")]
		registry.kill()
		defer s.again(registry)
	case 4:
		s.nats.kill()
		s.pass(rand.N(time.Second))
		s.nats.start()
	}
	select {
	case <-p.exited:
	case <-time.After(patience):
		s.t.Errorf("waited in vain for %s to stop", p.name)
		p.kill()
	}
	if status := p.command.ProcessState.ExitCode(); status != 0 {
		s.t.Errorf("%s stopped with exit status %d", p.name, status)
	}
	s.again(p)
	return p.name
}

// killDuringCalls kills a worker, the scheduler and a gateway in turns, while models call
// others.
func killDuringCalls(s *scene) string {
	s.t.Helper()
	switch len(s.harms) % 3 {
	case 0:
		return killOne("worker")(s)
	case 1:
		return killSchedulerAfterWorker(s)
	default:
		return killOne("gateway")(s)
	}
}

// killStub kills the process of a Python model, and every other time its worker soon
// after.
func killStub(s *scene) string {
	s.t.Helper()
	worker := s.any("worker", workers)
	processes := s.stubsOf(worker)
	s.strike("stub")
	if err := syscall.Kill(processes[rand.IntN(len(processes))], syscall.SIGKILL); err != nil {
		s.t.Errorf("kill a stub: %v", err)
	}
	if len(s.harms)%2 == 0 {
		s.pass(rand.N(500 * time.Millisecond))
		s.loses(worker)
		worker.kill()
		s.again(worker)
	}
	return "stub"
}

// killBetweenSteps kills a worker, and every other time the scheduler, of ensembles whose
// requests are on their way from step to step.
func killBetweenSteps(s *scene) string {
	s.t.Helper()
	if len(s.harms)%2 == 0 {
		return killOne("worker")(s)
	}
	return killSchedulerAfterWorker(s)
}

// killSchedulerAfterWorker kills the scheduler when a worker has died lately: its
// successor does not know what that has begun, and fails what was under way.
func killSchedulerAfterWorker(s *scene) string {
	s.t.Helper()
	role := control.PoolRole("default")
	p := s.processes[s.holder(role, "")]
	s.strike(p.name)
	p.signal(syscall.SIGKILL)
	s.undecided(p)
	s.takeover(role, p.name)
	s.again(p)
	return p.name
}

// stubsOf waits until a worker has all of its stubs, and returns their processes.
func (s *scene) stubsOf(worker *process) (ids []int) {
	s.t.Helper()
	for give := time.Now().Add(patience); len(ids) < stubs; s.pass(20 * time.Millisecond) {
		if time.Now().After(give) {
			s.t.Fatalf("waited in vain for %s to have %d stubs", worker.name, stubs)
		}
		ids = stubProcesses(worker.command.Process.Pid)
	}
	return ids
}

// stubProcesses are the stubs that a process has started and that live.
func stubProcesses(of int) (ids []int) {
	found, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is right
	for _, path := range found {
		var id, parent int
		var state string
		stat, _ := os.ReadFile(path) // a process that has ended has none
		before, after, _ := strings.Cut(string(stat), ") ")
		_, _ = fmt.Sscan(before, &id) // 0 if it has none
		_, _ = fmt.Sscan(after, &state, &parent)
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if parent == of && state != "Z" && strings.Contains(string(command), "nereid.stub") {
			ids = append(ids, id)
		}
	}
	return ids
}

// killWorkerAndScheduler has a scheduler take over from one that may not have
// noticed that a worker died, since its next incarnation already holds the lease.
func killWorkerAndScheduler(s *scene) string {
	worker := s.any("worker", workers)
	scheduler := s.processes[s.holder(control.PoolRole("default"), "")]
	s.strike(scheduler.name)
	s.loses(worker)
	worker.kill()
	worker.start()
	s.pass(rand.N(500 * time.Millisecond))
	scheduler.signal(syscall.SIGKILL)
	s.undecided(scheduler)
	s.takeover(control.PoolRole("default"), scheduler.name)
	worker.ready()
	s.again(scheduler)
	return scheduler.name
}

// killWorkerAndOnlyScheduler kills both at once where no standby has seen the
// worker, and has its next incarnation be there before a scheduler is.
func killWorkerAndOnlyScheduler(s *scene) string {
	worker, scheduler := s.any("worker", workers), s.processes["scheduler-1"]
	s.strike(scheduler.name)
	s.loses(worker)
	scheduler.signal(syscall.SIGKILL)
	worker.signal(syscall.SIGKILL)
	s.undecided(scheduler)
	<-worker.exited
	worker.start()
	worker.ready()
	scheduler.start()
	scheduler.ready()
	return scheduler.name
}

// cutWorkerOffAndKillScheduler has a scheduler take over from one that knew of a
// worker which has had no lease for so long that no other does.
func cutWorkerOffAndKillScheduler(s *scene) string {
	const forgotten = 25 * time.Second
	worker := s.any("worker", workers)
	s.links[worker.name].set(true, 0)
	s.pass(forgotten)
	scheduler := s.processes[s.holder(control.PoolRole("default"), "")]
	s.strike(scheduler.name)
	scheduler.signal(syscall.SIGKILL)
	s.undecided(scheduler)
	s.takeover(control.PoolRole("default"), scheduler.name)
	s.pass(10 * time.Second) // what ran on the worker ends
	s.links[worker.name].set(false, 0)
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
	other := fmt.Sprintf("other-%d", s.nats.incarnation)
	s.repository(other)
	s.serves(append(served(), other)...)

	added := s.addOne("worker", fmt.Sprintf("added-%d", s.nats.incarnation), s.worker)
	added.start()
	added.ready()
	s.runs(added.name, append(served(), other)...)

	killHolder(control.PoolRole("default"))(s)
	if err := os.RemoveAll(filepath.Join(s.dir, "models", other)); err != nil {
		s.t.Fatal(err)
	}
	s.serves(served()...)
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

// pauseWorker has a worker come back with batches that are old by then.
func pauseWorker(s *scene) string {
	p := s.any("worker", workers)
	s.strike(p.name)
	s.loses(p)
	p.signal(syscall.SIGSTOP)
	s.pass(pause())
	p.signal(syscall.SIGCONT)
	return p.name
}

// pauseScheduler has a scheduler come back after it was deposed.
func pauseScheduler(s *scene) string {
	p := s.processes[s.holder(control.PoolRole("default"), "")]
	s.strike(p.name)
	p.signal(syscall.SIGSTOP)
	s.takeover(control.PoolRole("default"), p.name)
	s.pass(rand.N(3 * time.Second))
	p.signal(syscall.SIGCONT)
	return p.name
}

// outliveSuccessor has a scheduler come back after it was deposed by one that has
// died since: nobody holds the pool, and it knows nothing of the other's term.
func outliveSuccessor(s *scene) string {
	role := control.PoolRole("default")
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
