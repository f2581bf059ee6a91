package registry_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry"
)

const (
	cpu = nereidv1.DeviceKind_DEVICE_KIND_CPU
	gpu = nereidv1.DeviceKind_DEVICE_KIND_GPU
)

// assigned waits until the worker's assignment names exactly these models.
func (s *store) assigned(worker string, models ...string) *nereidv1.AssignmentValue {
	s.t.Helper()
	var value *nereidv1.AssignmentValue
	s.assignments.await(s.t, "assignment of "+strings.Join(models, ", "), func(all map[string]*nereidv1.AssignmentValue) bool {
		value = byWorker(all)[worker]
		if value == nil || len(value.GetVersions()) != len(models) {
			return false
		}
		for i, v := range value.GetVersions() {
			if v.GetModel().GetName() != models[i] {
				return false
			}
		}
		return true
	})
	return value
}

func TestWorkersAreAssignedWhatFits(t *testing.T) {
	s := newStore(t)
	leave := s.worker("w", cpu)
	defer leave()
	s.start(repository(t, map[string]string{
		"a/config.pbtxt": echoConfig + "instance_group { count: 3 }", "a/1/f": "",
		"b/config.pbtxt": echoConfig + "instance_group { kind: KIND_GPU }", "b/1/f": "",
		"c/config.pbtxt": "broken", "c/1/f": "",
	}))
	leader := s.announced(0)
	got := s.assigned("w", "a")
	models, _ := s.models.all(t)
	ref := got.GetVersions()[0].GetModel()
	if ref.GetGeneration() != models["a"].GetVersions()[0].GetGeneration() || got.GetVersions()[0].GetGroups()[0].GetCount() != 3 {
		t.Errorf("assignment %v of model %v", got, models["a"])
	}
	if got.GetLeaderEpoch() != leader.GetEpoch() || got.GetModelsRevision() < leader.GetModelsRevision() {
		t.Errorf("assignment %v under leader %v", got, leader)
	}
	if cause := models["b"].GetVersions()[0].GetProblem(); !strings.Contains(cause, "no GPUs are available") {
		t.Errorf("b's problem is %q", cause)
	}
}

func TestCauseGoesWhenAWorkerFits(t *testing.T) {
	s := newStore(t)
	defer s.worker("w", cpu)()
	s.start(repository(t, map[string]string{"b/config.pbtxt": echoConfig + "instance_group { kind: KIND_GPU }", "b/1/f": ""}))
	problem := func(want bool) {
		t.Helper()
		s.models.await(t, "cause", func(all map[string]*nereidv1.ModelValue) bool {
			versions := all["b"].GetVersions()
			return len(versions) == 1 && (versions[0].GetProblem() != "") == want
		})
	}
	problem(true)
	defer s.worker("g", gpu)()
	s.assigned("g", "b")
	problem(false)
}

func TestAssignmentFollowsTheBucket(t *testing.T) {
	s := newStore(t)
	defer s.worker("w", cpu)()
	s.start(repository(t, map[string]string{"a/config.pbtxt": echoConfig, "a/1/f": "", "b/config.pbtxt": echoConfig, "b/1/f": ""}))
	s.assigned("w", "a", "b")
	models, _ := s.models.all(t)
	edited := proto.CloneOf(models["a"])
	edited.Versions[0].Desired = nereidv1.DesiredState_DESIRED_STATE_UNLOADED
	s.put(bus.Models, "a", edited)
	s.assigned("w", "b")
}

func TestAssignmentOutlivesAShortAbsence(t *testing.T) {
	s := newStore(t)
	leave := s.worker("w", cpu)
	s.start(repository(t, map[string]string{"a/config.pbtxt": echoConfig, "a/1/f": ""}))
	s.assigned("w", "a")
	_, before := s.assignments.all(t)
	leave()
	defer s.worker("w", cpu)()
	defer s.worker("x", cpu)()
	s.assigned("x", "a")
	if all, after := s.assignments.all(t); byWorker(all)["w"] == nil || after != before+2 { // x's assignment and head
		t.Errorf("after a short absence: %v at %d, before %d", all, after, before)
	}
}

func TestAssignmentOfAVanishedWorkerIsDeleted(t *testing.T) {
	s := newStore(t)
	root := repository(t, map[string]string{"a/config.pbtxt": echoConfig, "a/1/f": ""})
	leave := s.worker("w", cpu)
	defer s.worker("x", cpu)()
	s.startWith(func(c *registry.Config) { c.Repositories, c.WorkerGrace = []string{root}, 50*time.Millisecond })
	s.assigned("w", "a")
	leave()
	s.assignments.await(t, "deletion", func(all map[string]*nereidv1.AssignmentValue) bool {
		return all["w/"] == nil && all["w/a"] == nil && all["x/"] != nil && all["x/a"] != nil
	})
}
