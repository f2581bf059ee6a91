package registry_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry"
)

// hangs bounds the wait for what would never come if the leader were wrong.
const hangs = 25 * time.Second

// A worker refuses an assignment of a deposed leader, whatever it says. The leader writes it
// again, or the worker would wait for ever.
func TestAssignmentOfADeposedLeaderIsWrittenAgain(t *testing.T) {
	s := newStore(t)
	defer s.worker("w", cpu)()
	s.start(repository(t, map[string]string{"a/config.pbtxt": echoConfig, "a/1/f": ""}))
	s.assigned("w", "a")
	all, _ := s.assignments.await(t, "the fence", func(all map[string]*nereidv1.AssignmentValue) bool { return all["w/"] != nil })
	earlier := proto.CloneOf(all["w/a"])
	earlier.LeaderEpoch--
	written, err := s.assignments.Put(testContext(t), "w/a", earlier)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), hangs)
	defer cancel()
	for e := range s.assignments.Watch(ctx) {
		if e.Kind == bus.EventPut && e.Key == "w/a" && e.Revision > written && e.Value.GetLeaderEpoch() == all["w/a"].GetLeaderEpoch() {
			return
		}
	}
	t.Error("the worker is left with an assignment that it refuses")
}

// A scheduler that has not applied a swap may still send batches to the old content.
func TestOldContentStaysUntilSchedulersKnow(t *testing.T) {
	s := newScene(t, func(*registry.Config) {})
	scheduler := play(s.store, bus.Schedulers, "s", &nereidv1.ServiceValue{Schema: nereidv1.Schema, Id: "s"})
	s.model("the first content", whole)
	write(t, filepath.Join(s.root, "m/1/f"), "two")
	outcome := s.load("m")
	s.model("a swap", swapping)
	s.worker.say(runs(s.assigned("w", "m", "m"), nil))
	s.model("the end of the swap", whole)
	if err := <-outcome; err != nil { // it waits a while for the scheduler
		t.Errorf("Load = %v", err)
	}
	if all, _ := s.assignments.all(t); len(byWorker(all)["w"].GetVersions()) != 2 {
		t.Error("the old content was let go before the scheduler knew")
	}
	scheduler.say(&nereidv1.ServiceValue{Schema: nereidv1.Schema, Id: "s", AppliedRevision: 1 << 62})
	s.assigned("w", "m")
}

// What an earlier incarnation of a worker had loaded is gone.
func TestReportsOfAnEarlierIncarnationDoNotCount(t *testing.T) {
	s := newScene(t, func(*registry.Config) {})
	s.add("other", "1")
	s.model("the first content", whole)
	s.worker.player.say(&nereidv1.WorkerValue{Schema: nereidv1.Schema, WorkerId: "w", Epoch: 2, Device: &nereidv1.WorkerDevice{Kind: cpu}})
	report := func(model string, epoch uint64, versions []*nereidv1.WorkerVersion) {
		t.Helper()
		value := &nereidv1.InstancesValue{Schema: nereidv1.Schema, WorkerId: "w", Epoch: epoch, Versions: versions}
		if _, err := s.worker.instances.Put(testContext(t), bus.OwnedKey("w", model), value); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(s.root, "m/1/f"), "two")
	outcome := s.load("m")
	s.model("a swap", swapping)
	both := runs(s.assigned("w", "m", "m"), nil)
	report("m", 1, both)
	beside := s.load("other") // which shows that the leader goes on
	all, _ := s.assignments.await(t, "the other model", func(all map[string]*nereidv1.AssignmentValue) bool { return all["w/other"] != nil })
	report("other", 2, runs(all["w/other"], nil))
	if err := <-beside; err != nil {
		t.Errorf("Load of another model = %v", err)
	}
	if all, _ := s.models.all(t); !swapping(all["m"]) {
		t.Fatal("the swap ended by a report of an earlier incarnation")
	}
	report("m", 2, both)
	if err := <-outcome; err != nil {
		t.Errorf("Load = %v", err)
	}
}
