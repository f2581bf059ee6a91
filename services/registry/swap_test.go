package registry_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry"
)

// player is a worker or gateway whose part a test plays: it reports what
// the test sets.
type player[T any] struct {
	t     *testing.T
	lease *bus.Lease[T]
}

func (p *player[T]) say(value T) {
	p.t.Helper()
	if err := p.lease.Set(testContext(p.t), value); err != nil {
		p.t.Fatal(err)
	}
}

func play[T nereidv1.Value](s *store, bucket, key string, value T) *player[T] {
	s.t.Helper()
	b, err := bus.NewBucket(s.bus, bucket, bus.Values[T]())
	if err != nil {
		s.t.Fatal(err)
	}
	lease, err := b.Acquire(testContext(s.t), bus.Claim[T]{Key: key, Value: func(uint64) T { return value }})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := lease.Release(context.Background()); err != nil {
			s.t.Error(err)
		}
	})
	return &player[T]{s.t, lease}
}

// runs is what a worker says that has loaded what it is assigned, but for
// generations that fail, with their causes.
func runs(a *nereidv1.AssignmentValue, failed map[uint64]string) []*nereidv1.WorkerVersion {
	var all []*nereidv1.WorkerVersion
	for _, version := range a.GetVersions() {
		said := &nereidv1.WorkerVersion{Model: version.GetModel(), State: nereidv1.State_STATE_READY, Groups: version.GetGroups()}
		if cause := failed[version.GetModel().GetGeneration()]; cause != "" {
			said.State, said.Cause = nereidv1.State_STATE_UNAVAILABLE, cause
		}
		all = append(all, said)
	}
	return all
}

// actor is a worker whose part a test plays.
type actor struct {
	*player[*nereidv1.WorkerValue]
	id        string
	instances *bus.Bucket[*nereidv1.InstancesValue]
	reported  map[string]bool // keys
}

func (s *store) actor(id string) *actor {
	return s.actorWith(id, func(*nereidv1.WorkerValue) {})
}

func (s *store) actorWith(id string, edit func(*nereidv1.WorkerValue)) *actor {
	s.t.Helper()
	v := &nereidv1.WorkerValue{Schema: nereidv1.Schema, WorkerId: id, Epoch: 1, Device: &nereidv1.WorkerDevice{Kind: cpu}}
	edit(v)
	return &actor{
		player: play(s, bus.Workers, id, v), id: id,
		instances: viewOf[*nereidv1.InstancesValue](s.t, s.bus, bus.Instances).Bucket, reported: make(map[string]bool),
	}
}

// say makes the versions all that the worker runs.
func (a *actor) say(versions []*nereidv1.WorkerVersion) {
	a.t.Helper()
	if err := a.report(testContext(a.t), versions); err != nil {
		a.t.Fatal(err)
	}
}

func (a *actor) report(ctx context.Context, versions []*nereidv1.WorkerVersion) error {
	values := make(map[string]*nereidv1.InstancesValue)
	for _, v := range versions {
		key := bus.OwnedKey(a.id, v.GetModel().GetName())
		if values[key] == nil {
			values[key] = &nereidv1.InstancesValue{Schema: nereidv1.Schema, WorkerId: a.id, Epoch: 1}
		}
		values[key].Versions = append(values[key].Versions, v)
	}
	for key := range a.reported {
		if values[key] == nil {
			if err := a.instances.Delete(ctx, key, 0); err != nil {
				return err
			}
			delete(a.reported, key)
		}
	}
	for key, value := range values {
		if _, err := a.instances.Put(ctx, key, value); err != nil {
			return err
		}
		a.reported[key] = true
	}
	return nil
}

func knows(models, said uint64) *nereidv1.ServiceValue {
	return &nereidv1.ServiceValue{Schema: nereidv1.Schema, Id: "g", AppliedRevision: models, WorkersRevision: said, InstancesRevision: said}
}

// scene is a store with a worker, a gateway and an explicitly controlled
// registry that serves one model.
type scene struct {
	*store
	root    string
	replica *replica
	worker  *actor
	gateway *player[*nereidv1.ServiceValue]
}

func newScene(t *testing.T, edit func(*registry.Config)) *scene {
	t.Helper()
	return newSceneOn(t, func(*nereidv1.WorkerValue) {}, edit)
}

func newSceneOn(t *testing.T, worker func(*nereidv1.WorkerValue), edit func(*registry.Config)) *scene {
	t.Helper()
	s := &scene{store: newStore(t), root: repository(t, map[string]string{"m/config.pbtxt": echoConfig, "m/1/f": "one"})}
	s.worker = s.store.actorWith("w", worker)
	s.gateway = play(s.store, bus.Gateways, "g", knows(1<<62, 1<<62))
	s.replica = s.startWith(func(c *registry.Config) {
		c.Repositories, c.Control, c.LoadModels, c.FileQuietPeriod = []string{s.root}, registry.ControlExplicit, []string{"m"}, 0
		edit(c)
	})
	s.worker.say(runs(s.assigned("w", "m"), nil))
	return s
}

// obey has the worker run what it is assigned, from now on.
func (s *scene) obey() {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan struct{})
	events := s.assignments.Watch(ctx)
	go func() {
		defer close(done)
		all := make(map[string]*nereidv1.AssignmentValue)
		for e := range events {
			if all[e.Key] = e.Value; e.Kind == bus.EventDelete {
				delete(all, e.Key)
			}
			if joined := byWorker(all)[s.worker.id]; e.Kind != bus.EventCaughtUp && joined != nil {
				if err := s.worker.report(ctx, runs(joined, nil)); err != nil && ctx.Err() == nil {
					s.t.Error(err)
				}
			}
		}
	}()
	s.t.Cleanup(func() {
		cancel()
		<-done
	})
}

// model waits until m's value is as wanted.
func (s *scene) model(what string, holds func(*nereidv1.ModelValue) bool) (value *nereidv1.ModelValue) {
	s.t.Helper()
	s.models.await(s.t, what, func(all map[string]*nereidv1.ModelValue) bool {
		value = all["m"]
		return holds(value)
	})
	return value
}

func (s *scene) load(name string) <-chan error {
	outcome := make(chan error, 1)
	go func() { outcome <- s.replica.Load(testContext(s.t), name, "", nil) }()
	return outcome
}

func swapping(v *nereidv1.ModelValue) bool { return v.GetPrevious() != nil }
func whole(v *nereidv1.ModelValue) bool    { return v.GetPrevious() == nil }

func TestSwapWaitsForWorkersThenForGateways(t *testing.T) {
	s := newScene(t, func(*registry.Config) {})
	first := s.model("the first content", whole)
	s.gateway.say(knows(1<<62, 0)) // it has not received the workers
	write(t, filepath.Join(s.root, "m/1/f"), "two")
	outcome := s.load("m")
	next := s.model("a swap", swapping)
	if got := next.GetPrevious().GetVersions()[0]; !proto.Equal(got, first.GetVersions()[0]) {
		t.Errorf("what serves is %v, want %v", got, first.GetVersions()[0])
	}
	both := s.assigned("w", "m", "m")
	if all, _ := s.models.all(t); !swapping(all["m"]) {
		t.Error("swapped before the worker was ready")
	}
	s.worker.say(runs(both, nil))
	s.worker.say(runs(both, map[uint64]string{1: ""}))
	if all, _ := s.models.all(t); !swapping(all["m"]) {
		t.Error("swapped before the gateway had heard of it")
	}
	s.gateway.say(knows(0, 1<<62)) // it has received the swap, but not applied it
	s.model("the end of the swap", whole)
	if kept := s.assigned("w", "m", "m"); len(kept.GetVersions()) != 2 {
		t.Error("the old content was let go before the gateway knew")
	}
	select {
	case err := <-outcome:
		t.Errorf("answered before the gateway knew: %v", err)
	default:
	}
	s.gateway.say(knows(1<<62, 1<<62))
	if err := <-outcome; err != nil {
		t.Errorf("Load = %v", err)
	}
	if last := s.assigned("w", "m"); last.GetVersions()[0].GetModel().GetGeneration() != next.GetVersions()[0].GetGeneration() {
		t.Errorf("in the end %v is assigned", last)
	}
}

func TestFailedSwapFallsBack(t *testing.T) {
	s := newScene(t, func(*registry.Config) {})
	first := s.model("the first content", whole)
	write(t, filepath.Join(s.root, "m/1/f"), "bad")
	for attempt := 1; attempt <= 2; attempt++ { // a second time, since it is asked for again
		outcome := s.load("m")
		next := s.model("a swap", swapping)
		s.worker.say(runs(s.assigned("w", "m", "m"), map[uint64]string{next.GetVersions()[0].GetGeneration(): "no such operator"}))
		err := <-outcome
		if errs.Of(err) != errs.LoadFailed || !strings.Contains(err.Error(), "load failed for model 'm': version 1 is at UNAVAILABLE state: no such operator;") {
			t.Errorf("Load = %v", err)
		}
		back := s.model("the fall back", whole)
		if !proto.Equal(back.GetVersions()[0], first.GetVersions()[0]) || !strings.Contains(back.GetFailure(), "no such operator") {
			t.Errorf("after the failure: %v", back)
		}
		s.assigned("w", "m")
	}
	write(t, filepath.Join(s.root, "m/1/f"), "one")
	if err := <-s.load("m"); err != nil {
		t.Errorf("Load of what serves = %v", err)
	}
	if v := s.model("the old content", whole); v.GetFailure() != "" || !proto.Equal(v.GetVersions()[0], first.GetVersions()[0]) {
		t.Errorf("after a load of what serves: %v", v)
	}
}

func TestPollRefusesAFailedContentOnce(t *testing.T) {
	s := newScene(t, func(c *registry.Config) {
		c.Control, c.LoadModels, c.Poll = registry.ControlPoll, nil, registry.Seconds(10*time.Millisecond)
	})
	s.model("the first content", whole)
	write(t, filepath.Join(s.root, "m/1/f"), "bad")
	next := s.model("a swap", swapping)
	s.worker.say(runs(s.assigned("w", "m", "m"), map[uint64]string{next.GetVersions()[0].GetGeneration(): "bad"}))
	s.model("the fall back", func(v *nereidv1.ModelValue) bool { return whole(v) && v.GetFailure() != "" })
	before, err := s.models.Get(testContext(t), "m")
	if err != nil {
		t.Fatal(err)
	}
	// Models that come later show that polls go on.
	for _, name := range []string{"n", "o"} {
		if err := os.CopyFS(filepath.Join(s.root, name), os.DirFS(filepath.Join(s.root, "m"))); err != nil {
			t.Fatal(err)
		}
		s.models.await(t, "a new model", func(all map[string]*nereidv1.ModelValue) bool { return all[name] != nil })
	}
	if after, err := s.models.Get(testContext(t), "m"); err != nil || after.Revision != before.Revision {
		t.Errorf("the failed content is tried again: %v after %v, %v", after, before, err)
	}
}

// A worker that finds other files than the registry has read says so, and the
// next poll tries what there is then, be it the same.
func TestPollLoadsAgainWhatAWorkerFoundChanged(t *testing.T) {
	s := newScene(t, func(c *registry.Config) {
		c.Control, c.LoadModels, c.Poll = registry.ControlPoll, nil, registry.Seconds(10*time.Millisecond)
	})
	s.model("the first content", whole)
	write(t, filepath.Join(s.root, "m/1/f"), "two")
	next := s.model("a swap", swapping)
	generation := next.GetVersions()[0].GetGeneration()
	s.worker.say(changed(s.assigned("w", "m", "m"), generation))
	again := s.model("another try", func(v *nereidv1.ModelValue) bool {
		return swapping(v) && v.GetVersions()[0].GetGeneration() > generation
	})
	s.assignments.await(t, "the other try", func(all map[string]*nereidv1.AssignmentValue) bool {
		versions := byWorker(all)["w"].GetVersions()
		return len(versions) == 2 && versions[1].GetModel().GetGeneration() == again.GetVersions()[0].GetGeneration()
	})
	all, _ := s.assignments.all(t)
	s.worker.say(runs(byWorker(all)["w"], nil))
	s.model("the end of the swap", func(v *nereidv1.ModelValue) bool {
		return whole(v) && v.GetVersions()[0].GetGeneration() == again.GetVersions()[0].GetGeneration() && v.GetFailure() == ""
	})
}

func TestPollSurvivesTheLossOfItsRepository(t *testing.T) {
	s := newScene(t, func(c *registry.Config) {
		c.Control, c.LoadModels, c.Poll = registry.ControlPoll, nil, registry.Seconds(10*time.Millisecond)
	})
	s.model("the first content", whole)
	away := s.root + ".away"
	if err := os.Rename(s.root, away); err != nil {
		t.Fatal(err)
	}
	s.replica.logs.await(t, "repositories not read: what was read before stays")
	if all, _ := s.models.all(t); all["m"] == nil {
		t.Error("the model went with its repository")
	}
	write(t, filepath.Join(away, "m/1/f"), "two")
	if err := os.Rename(away, s.root); err != nil {
		t.Fatal(err)
	}
	s.model("a swap", swapping)
}

// A model's operations run one after another, up to a bound on those that wait.
func TestOperationsOnOneModelWaitForEachOther(t *testing.T) {
	const most = 64
	s := newScene(t, func(*registry.Config) {})
	s.model("the first content", whole)
	write(t, filepath.Join(s.root, "m/1/f"), "two")
	first := s.load("m")
	s.model("a swap", swapping)
	outcomes := make(chan error)
	for range most + 1 {
		go func() { outcomes <- s.replica.Load(testContext(t), "m", "", nil) }()
	}
	err := <-outcomes
	if errs.Of(err) != errs.LoadConflict || !strings.Contains(err.Error(), "a related model 'm' to a load/unload request is currently loading or unloading") {
		t.Errorf("a load behind %d others: %v", most, err)
	}
	if err := s.replica.Unload(testContext(t), "m", false); errs.Of(err) != errs.LoadConflict {
		t.Errorf("an unload behind %d others: %v", most, err)
	}
	s.worker.say(runs(s.assigned("w", "m", "m"), nil))
	if err := <-first; err != nil {
		t.Errorf("the first load: %v", err)
	}
	for range most {
		if err := <-outcomes; err != nil {
			t.Errorf("a load that waited: %v", err)
		}
	}
	if err := s.replica.Unload(testContext(t), "m", false); err != nil {
		t.Errorf("Unload = %v", err)
	}
	v := s.model("the unload", whole)
	if got := v.GetVersions()[0].GetDesired(); got != nereidv1.DesiredState_DESIRED_STATE_UNLOADED {
		t.Errorf("after the unload the model is to be %v", got)
	}
}

// changed is what a worker says that found other files than those of a generation.
func changed(a *nereidv1.AssignmentValue, generation uint64) []*nereidv1.WorkerVersion {
	said := runs(a, map[uint64]string{generation: "other files"})
	for _, v := range said {
		if v.GetCause() != "" {
			v.Reason = string(errs.FilesChanged)
		}
	}
	return said
}

func TestLoadReadsAgainWhatAWorkerFoundChanged(t *testing.T) {
	s := newScene(t, func(*registry.Config) {})
	s.model("the first content", whole)
	write(t, filepath.Join(s.root, "m/1/f"), "two")
	outcome := s.load("m")
	generation := s.model("a swap", swapping).GetVersions()[0].GetGeneration()
	first := s.assigned("w", "m", "m")
	write(t, filepath.Join(s.root, "m/1/f"), "three")
	s.worker.say(changed(first, generation))
	again := s.model("another try", func(v *nereidv1.ModelValue) bool {
		return swapping(v) && v.GetVersions()[0].GetGeneration() > generation
	})
	s.assignments.await(t, "the other try", func(all map[string]*nereidv1.AssignmentValue) bool {
		versions := byWorker(all)["w"].GetVersions()
		return len(versions) == 2 && versions[1].GetModel().GetGeneration() == again.GetVersions()[0].GetGeneration()
	})
	all, _ := s.assignments.all(t)
	s.worker.say(runs(byWorker(all)["w"], nil))
	if err := <-outcome; err != nil {
		t.Errorf("Load = %v", err)
	}
	v := s.model("the end of the swap", whole)
	if got, want := v.GetVersions()[0].GetGeneration(), again.GetVersions()[0].GetGeneration(); got != want || v.GetFailure() != "" {
		t.Errorf("generation %d serves with failure %q, want %d", got, v.GetFailure(), want)
	}
}

// A load that changes instances alone is over when those of before are gone.
func TestLoadWaitsForTheInstancesThatItReplaces(t *testing.T) {
	s := newScene(t, func(*registry.Config) {})
	s.add("other", "1")
	s.model("the first content", whole)
	write(t, filepath.Join(s.root, "m/config.pbtxt"), echoConfig+`instance_group { kind: KIND_CPU host_policy: "other" }`)
	outcome := s.load("m")
	s.model("a swap", swapping)
	both := runs(s.assigned("w", "m", "m"), nil)
	s.worker.say(both)
	s.model("the end of the swap", whole)
	after := s.assigned("w", "m")
	beside := s.load("other") // which shows that the registry goes on
	s.worker.say(append(runs(s.assigned("w", "m", "other"), nil), both[0]))
	if err := <-beside; err != nil {
		t.Errorf("Load of another model = %v", err)
	}
	select {
	case err := <-outcome:
		t.Fatalf("Load = %v while the worker has the instances of before", err)
	default:
	}
	s.worker.say(runs(after, nil))
	if err := <-outcome; err != nil {
		t.Errorf("Load = %v", err)
	}
}

func TestWhatWasAskedForOutlivesTheLeader(t *testing.T) {
	s := newScene(t, func(*registry.Config) {})
	epoch := s.announced(0).GetEpoch()
	if err := s.replica.Unload(testContext(t), "m", false); err != nil {
		t.Fatal(err)
	}
	s.replica.stop()
	if err := s.replica.Load(testContext(t), "m", "", nil); errs.Of(err) != errs.StateUnavailable {
		t.Errorf("Load without a leader = %v", err)
	}
	second := s.startWith(func(c *registry.Config) {
		c.Repositories, c.Control, c.LoadModels = []string{s.root}, registry.ControlExplicit, []string{"m"}
	})
	s.announced(epoch)
	second.logs.await(t, "scan announced")
	if v := s.model("a value", whole); v.GetVersions()[0].GetDesired() != nereidv1.DesiredState_DESIRED_STATE_UNLOADED {
		t.Errorf("the next leader loads what was unloaded: %v", v)
	}
}

// TestLoadOutlivesALostLeadership takes the lease away in the middle of a load, which
// the next leadership starts again.
func TestLoadOutlivesALostLeadership(t *testing.T) {
	s := newScene(t, func(*registry.Config) {})
	epoch := s.announced(0).GetEpoch()
	write(t, filepath.Join(s.root, "m/1/f"), "two")
	loading := s.load("m")
	s.model("a swap", swapping)
	if err := s.leaders.Delete(testContext(t), "registry", 0); err != nil {
		t.Fatal(err)
	}
	s.announced(epoch)
	s.worker.say(runs(s.assigned("w", "m", "m"), nil))
	if err := <-loading; err != nil {
		t.Errorf("Load = %v", err)
	}
	s.model("the end of the swap", whole)
}

func TestSwapIsFinishedByTheNextLeader(t *testing.T) {
	s := newScene(t, func(*registry.Config) {})
	epoch := s.announced(0).GetEpoch()
	write(t, filepath.Join(s.root, "m/1/f"), "two")
	s.load("m")
	next := s.model("a swap", swapping)
	s.replica.stop()
	s.startWith(func(c *registry.Config) { c.Repositories, c.Control = []string{s.root}, registry.ControlExplicit })
	s.announced(epoch)
	s.worker.say(runs(s.assigned("w", "m", "m"), nil))
	if v := s.model("the end of the swap", whole); v.GetVersions()[0].GetGeneration() != next.GetVersions()[0].GetGeneration() {
		t.Errorf("after the swap: %v, want generation %d", v, next.GetVersions()[0].GetGeneration())
	}
}
