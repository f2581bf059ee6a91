package core_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/state"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
)

// script feeds a core with events, executes its commands, and compares what it does.
type script struct {
	t        *testing.T
	core     *core.Core
	now      time.Time
	revision uint64
	values   map[core.Key]*nereidv1.ModelValue
	parts    map[core.Key]*nereidv1.AssignmentValue
	refuse   func(core.Write) error // nil executes all
	lines    []string
}

func newScript(t *testing.T, edit func(*core.Config)) *script {
	cfg := core.Config{
		Poll: true, PollEvery: time.Hour, Epoch: 1, WorkerGrace: time.Minute, LossGrace: 5 * time.Second, Retry: time.Second, LongestRetry: time.Minute,
		AckTimeout: 5 * time.Second, LagTimeout: 30 * time.Second, LoadTimeout: time.Hour, Reads: 3,
	}
	edit(&cfg)
	s := &script{t: t, core: core.New(cfg), now: time.Unix(1e9, 0), values: make(map[core.Key]*nereidv1.ModelValue), parts: make(map[core.Key]*nereidv1.AssignmentValue)}
	for _, b := range buckets() {
		s.feed(core.CaughtUp{Bucket: b})
	}
	return s
}

// do feeds events and compares what follows with lines.
func (s *script) do(events []core.Event, want ...string) {
	s.t.Helper()
	s.lines = nil
	for _, e := range events {
		s.feed(e)
	}
	if diff := cmp.Diff(want, s.lines); diff != "" {
		s.t.Fatalf("effects (-want +got):\n%s", diff)
	}
}

func (s *script) feed(e core.Event) core.Effects {
	for {
		effects := s.core.Step(s.now, e)
		s.describe(effects)
		if len(effects.Commands) == 0 {
			return effects
		}
		var done core.Done
		for _, command := range effects.Commands {
			r := s.execute(command)
			if done.Results = append(done.Results, r); slices.ContainsFunc(r.Errs, func(err error) bool { return err != nil }) {
				break
			}
		}
		e = done
	}
}

func (s *script) execute(command core.Command) core.Result {
	batch, _ := command.(core.Batch)
	if w, is := command.(core.Write); is {
		batch = core.Batch{w}
	}
	if batch == nil {
		return core.Result{Revisions: []uint64{0}, Errs: []error{nil}}
	}
	var r core.Result
	for _, w := range batch {
		var err error
		if s.refuse != nil {
			err = s.refuse(w)
		}
		if s.revision++; err == nil {
			s.keep(w)
		}
		r.Revisions, r.Errs = append(r.Revisions, s.revision), append(r.Errs, err)
	}
	return r
}

func (s *script) keep(w core.Write) {
	switch v := w.Value.(type) {
	case *nereidv1.ModelValue:
		s.values[w.Key] = v
	case *nereidv1.AssignmentValue:
		s.parts[w.Key] = v
	}
}

// describe writes effects as lines; what is in every script is left out.
func (s *script) describe(effects core.Effects) {
	line := func(format string, args ...any) { s.lines = append(s.lines, fmt.Sprintf(format, args...)) }
	if effects.Scan != nil {
		line("scan")
	}
	for _, r := range effects.Reads {
		line("read %s for %d", r.Model, r.Caller)
	}
	for _, a := range effects.Answers {
		line("answer %d: %v", a.Caller, a.Err)
	}
	for _, n := range effects.Notes {
		if n.Level > core.Info {
			line("note %s", n.Text)
		}
	}
	for _, command := range effects.Commands {
		switch c := command.(type) {
		case core.Write:
			line("%s", describeWrite(c))
		case core.Batch:
			for _, w := range c {
				line("%s", describeWrite(w))
			}
		case core.Announce:
			line("announce")
		}
	}
}

func describeWrite(w core.Write) string {
	switch v := w.Value.(type) {
	case *nereidv1.ModelValue:
		var versions []string
		for _, version := range v.GetVersions() {
			versions = append(versions, fmt.Sprint(version.GetDigest(), "@", version.GetGeneration()))
		}
		text := "model " + w.Key.Name + " " + strings.Join(versions, ",")
		if p := v.GetPrevious(); p != nil {
			text += fmt.Sprint(" beside ", p.GetVersions()[0].GetDigest())
		}
		for _, problem := range []string{v.GetProblem(), v.GetFailure()} {
			if problem != "" {
				text += ": " + problem
			}
		}
		return text
	case *nereidv1.AssignmentValue:
		if w.Key.Name == "" {
			return "fence " + w.Key.Owner
		}
		text := "assign " + w.Key.Owner
		for _, version := range v.GetVersions() {
			text += fmt.Sprint(" ", state.RefOf(version.GetModel()))
		}
		return text
	case *nereidv1.PoolValue:
		return "pool " + v.GetName()
	}
	return fmt.Sprint("delete ", w.Key)
}

func (s *script) changed(b core.Bucket, k core.Key, v interface {
	nereidv1.Value
},
) core.Event {
	s.revision++
	return core.Changed{Bucket: b, Key: k, Value: v, Revision: s.revision}
}

func (s *script) worker(id string) core.Event {
	return s.changed(core.Workers, core.Key{Name: id}, &nereidv1.WorkerValue{
		Schema: nereidv1.Schema, WorkerId: id, Epoch: 1, AssignmentRevision: s.revision, Device: &nereidv1.WorkerDevice{Kind: nereidv1.DeviceKind_DEVICE_KIND_CPU},
	})
}

// reports has a worker report what it was assigned of a model in a state, but for versions
// that it reports as ready.
func (s *script) reports(id, model string, in nereidv1.State) core.Event {
	k := core.Key{Owner: id, Name: model}
	v := &nereidv1.InstancesValue{Schema: nereidv1.Schema, WorkerId: id, Epoch: 1}
	for i, assigned := range s.parts[k].GetVersions() {
		version := &nereidv1.WorkerVersion{Model: assigned.GetModel(), Groups: assigned.GetGroups(), State: ready}
		if i == len(s.parts[k].GetVersions())-1 {
			if version.State = in; in == unavailable {
				version.Cause, version.Reason = "bad", string(errs.LoadFailed)
			}
		}
		v.Versions = append(v.Versions, version)
	}
	return s.changed(core.Instances, k, v)
}

// gateway has the gateway report that it knows all, but for the last so many revisions.
func (s *script) gateway(behind uint64) core.Event {
	now := s.revision
	return s.changed(core.Gateways, core.Key{Name: "g"}, &nereidv1.ServiceValue{
		Schema: nereidv1.Schema, AppliedRevision: now - behind, WorkersRevision: now, InstancesRevision: now,
	})
}

func scanned(models ...catalog.Model) core.Event {
	return core.Scanned{Snapshot: &catalog.Snapshot{Models: models}}
}

func model(name, digest string) catalog.Model { return found(name, &content{digest: digest}) }

// started has the model k in content a be served by the worker w.
func started(t *testing.T, edit func(*core.Config)) *script {
	s := newScript(t, edit)
	s.do([]core.Event{core.Started{}, s.worker("w"), s.gateway(0)}, "scan", "pool default")
	s.do([]core.Event{scanned(model("k", "a"))}, "model k a@1", "announce", "assign w k/1@1", "fence w")
	s.do([]core.Event{s.reports("w", "k", ready), s.gateway(0)})
	return s
}

func explicit(c *core.Config) { c.Poll, c.Explicit, c.LoadModels = false, true, []string{"k"} }

func polling(*core.Config) {}

// An update is loaded beside what serves, and takes its place when it is ready and the gateway
// knows. The old generation goes when the gateway has applied that.
func TestAnUpdateIsSwapped(t *testing.T) {
	s := started(t, polling)
	s.now = s.now.Add(time.Hour)
	s.do([]core.Event{core.Tick{}}, "scan")
	s.do([]core.Event{scanned(model("k", "b"))}, "model k b@5 beside a", "assign w k/1@1 k/1@5")
	s.do([]core.Event{s.reports("w", "k", loading), s.gateway(0)})
	s.do([]core.Event{s.reports("w", "k", ready)})
	s.do([]core.Event{s.gateway(0)}, "model k b@5")
	s.do([]core.Event{core.Tick{}})
	s.do([]core.Event{s.gateway(0)}, "assign w k/1@5")
}

// An update that fails leaves what served in its place, and is not loaded again.
func TestAnUpdateIsRolledBack(t *testing.T) {
	s := started(t, polling)
	s.now = s.now.Add(time.Hour)
	s.do([]core.Event{core.Tick{}, scanned(model("k", "b"))}, "scan", "model k b@5 beside a", "assign w k/1@1 k/1@5")
	s.do([]core.Event{s.reports("w", "k", unavailable)},
		"model k a@1: load failed for model 'k': version 1 is at UNAVAILABLE state: bad;", "note model failed to load: the versions that serve go on", "assign w k/1@1")
	s.now = s.now.Add(time.Hour)
	s.do([]core.Event{core.Tick{}, scanned(model("k", "b"))}, "scan")
}

// A gateway that is alive and does not apply a change holds up nothing for longer than
// LagTimeout.
func TestAGatewayThatLags(t *testing.T) {
	s := started(t, polling)
	s.now = s.now.Add(time.Hour)
	s.do([]core.Event{core.Tick{}, scanned(model("k", "b"))}, "scan", "model k b@5 beside a", "assign w k/1@1 k/1@5")
	s.do([]core.Event{s.reports("w", "k", ready), s.gateway(0)}, "model k b@5")
	s.now = s.now.Add(29 * time.Second)
	s.do([]core.Event{core.Tick{}})
	s.now = s.now.Add(time.Second)
	effects := s.core.Step(s.now, core.Tick{})
	if effects.Report == nil || len(effects.Report.Lagging) != 1 {
		t.Errorf("report %v", effects.Report)
	}
	s.lines = nil
	s.describe(effects)
	want := []string{"note a service is alive and has not applied a change of the models: what it replaced is unloaded all the same", "assign w k/1@5"}
	if diff := cmp.Diff(want, s.lines); diff != "" {
		t.Fatalf("effects (-want +got):\n%s", diff)
	}
	s.core.Step(s.now, core.Done{Results: []core.Result{s.execute(effects.Commands[0])}})
	if effects = s.core.Step(s.now, s.gateway(0)); effects.Report == nil || len(effects.Report.Lagging) != 0 {
		t.Errorf("report after the gateway has caught up: %v", effects.Report)
	}
}

// A load is answered when all know its outcome, and the ones behind it wait.
func TestLoadsAreAnswered(t *testing.T) {
	s := started(t, explicit)
	id := infer.ModelID{Name: "k"}
	s.do([]core.Event{core.Requested{Caller: 1, Load: true, Model: id}, core.Requested{Caller: 2, Model: id}}, "read k for 1")
	s.do([]core.Event{core.WasRead{Operation: 1, Model: model("k", "b")}}, "model k b@5 beside a", "assign w k/1@1 k/1@5")
	s.do([]core.Event{s.reports("w", "k", ready), s.gateway(0)}, "model k b@5")
	s.do([]core.Event{s.gateway(0)}, "assign w k/1@5", "answer 1: <nil>")
	s.do([]core.Event{core.Tick{}}, "model k b@5")
	s.do([]core.Event{s.gateway(0)}, "assign w", "answer 2: <nil>")
}

// A load that workers take too long for is answered, and goes on.
func TestALoadHasADeadline(t *testing.T) {
	s := started(t, explicit)
	s.do([]core.Event{core.Requested{Caller: 1, Load: true, Model: infer.ModelID{Name: "k"}}, core.WasRead{Operation: 1, Model: model("k", "b")}},
		"read k for 1", "model k b@5 beside a", "assign w k/1@1 k/1@5")
	s.now = s.now.Add(time.Hour)
	s.do([]core.Event{core.Tick{}}, "scan", "answer 1: load failed for model 'k': it has not ended within 1h0m0s, and goes on: see the repository index and nereid status")
	s.do([]core.Event{s.reports("w", "k", ready), s.gateway(0)}, "model k b@5")
}

// An ensemble's load waits for the loads of its steps, and fails with the first of them.
func TestAnEnsembleWaitsForItsSteps(t *testing.T) {
	s := started(t, explicit)
	ensemble := catalog.Model{Name: "e", URL: "file:///r/e", Config: &inference.ModelConfig{
		Name: "e", Platform: "ensemble",
		Input: []*inference.ModelInput{{Name: "x", DataType: inference.DataType_TYPE_FP32, Dims: []int64{1}}}, Output: []*inference.ModelOutput{{Name: "y", DataType: inference.DataType_TYPE_FP32, Dims: []int64{1}}},
		SchedulingChoice: &inference.ModelConfig_EnsembleScheduling{EnsembleScheduling: &inference.ModelEnsembling{Step: []*inference.ModelEnsembling_Step{
			{ModelName: "l", ModelVersion: -1, InputMap: map[string]string{"x": "x"}, OutputMap: map[string]string{"y": "y"}},
		}}},
	}, Versions: []catalog.Version{{Number: 1, Digest: "e1", URL: "file:///r/e/1"}}}
	modelconfig.Normalize(ensemble.Config, modelconfig.Directory{Name: "e"})
	s.do([]core.Event{core.Requested{Caller: 1, Load: true, Model: infer.ModelID{Name: "e"}}}, "read e for 1")
	s.do([]core.Event{core.WasRead{Operation: 1, Model: ensemble}}, "read l for 0")
	s.do([]core.Event{core.WasRead{Operation: 2, Err: core.UnknownModel("l")}},
		"answer 1: load failed for model 'e': ensemble e contains models that are not available or ambiguous: l (failed to load 'l', failed to poll from model repository)")
	s.do([]core.Event{core.Requested{Caller: 2, Load: true, Model: infer.ModelID{Name: "e"}}, core.WasRead{Operation: 3, Model: ensemble}}, "read e for 2", "read l for 0")
	s.do([]core.Event{core.WasRead{Operation: 4, Model: model("l", "a")}}, "model l a@5", "assign w l/1@5")
	s.do([]core.Event{s.reports("w", "l", ready)})
	s.do([]core.Event{s.gateway(0)})
	s.do([]core.Event{s.gateway(0), core.Tick{}}, "model e e1@10")
	s.do([]core.Event{s.gateway(0), core.Tick{}}, "answer 2: <nil>")
}

// A model that its bucket does not take has its problem in its place, and holds up no other.
func TestAModelThatIsTooLarge(t *testing.T) {
	s := newScript(t, polling)
	s.refuse = func(w core.Write) error {
		if v, is := w.Value.(*nereidv1.ModelValue); is && w.Key.Name == "k" && v.GetProblem() == "" {
			return errs.New(errs.BodyTooLarge, "too large")
		}
		return nil
	}
	s.do([]core.Event{core.Started{}, scanned(model("k", "a"), model("l", "a"))},
		"scan", "pool default", "model k a@1", "model l a@1", "note model does not fit into its bucket", "model k : too large: shorten its configuration", "model l a@1", "announce")
}

// After a failure the writes are made again, and what has come through is not.
func TestFailedWritesAreMadeAgain(t *testing.T) {
	s := newScript(t, polling)
	fails := true
	s.refuse = func(w core.Write) error {
		if fails && w.Key.Name == "l" {
			return errs.New(errs.StateUnavailable, "away")
		}
		return nil
	}
	s.do([]core.Event{core.Started{}, scanned(model("k", "a"), model("l", "a"))}, "scan", "pool default", "model k a@1", "model l a@1", "note state not written")
	fails = false
	s.do([]core.Event{core.Tick{}}, "model l a@3", "announce")
}

// What a lost worker was assigned is deleted after a while, its fence first.
func TestALostWorkerIsForgotten(t *testing.T) {
	s := started(t, polling)
	s.revision++
	s.do([]core.Event{core.Changed{Bucket: core.Workers, Key: core.Key{Name: "w"}, Revision: s.revision, Deleted: true, Expired: true}},
		"note worker lost: its assignments are kept for its return")
	s.now = s.now.Add(time.Minute)
	s.do([]core.Event{core.Tick{}}, "delete {w }", "delete {w k}", "delete {w k}")
}

// What a store has lost is written again, and nothing goes to other workers until theirs have
// had time to return.
func TestAStoreThatHasLostItsState(t *testing.T) {
	before := started(t, polling)
	s := newScript(t, func(c *core.Config) { c.Epoch = 2 })
	lost := core.Started{Models: map[string]*nereidv1.ModelValue{"k": before.values[core.Key{Name: "k"}]}, Assignments: before.parts}
	s.do([]core.Event{lost}, "model k a@1", "assign w k/1@1", "scan", "note the models are written again to a store that has lost them", "pool default")
	s.do([]core.Event{scanned(model("k", "a")), s.worker("v")}, "announce", "fence v")
	s.now = s.now.Add(5 * time.Second)
	s.do([]core.Event{core.Tick{}}, "assign v k/1@1")
	if publish.Serving(s.values[core.Key{Name: "k"}], publish.Observed{}) == nil {
		t.Error("the model does not serve")
	}
}

// What could not be written again, since the store was away, is written when it is back.
func TestALossIsRestoredAfterAFailure(t *testing.T) {
	before := started(t, polling)
	s := newScript(t, func(c *core.Config) { c.Epoch = 2 })
	fails := true
	s.refuse = func(core.Write) error {
		if fails {
			return errs.New(errs.StateUnavailable, "away")
		}
		return nil
	}
	lost := core.Started{Models: map[string]*nereidv1.ModelValue{"k": before.values[core.Key{Name: "k"}]}, Assignments: before.parts}
	s.do([]core.Event{lost}, "model k a@1", "assign w k/1@1", "note state not written")
	fails = false
	s.do([]core.Event{core.Tick{}}, "model k a@1", "assign w k/1@1", "scan", "note the models are written again to a store that has lost them", "pool default")
}
