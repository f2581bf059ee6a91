package registry_test

import (
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/errs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// retried waits until m's value asks for a generation above one.
func (s *scene) retried(above uint64) uint64 {
	s.t.Helper()
	return s.model("a swap", func(v *nereidv1.ModelValue) bool {
		return swapping(v) && v.GetVersions()[0].GetGeneration() > above
	}).GetVersions()[0].GetGeneration()
}

// assignedBoth waits until a worker should run a generation beside the one that serves.
func (s *scene) assignedBoth(worker string, generation uint64) (value *nereidv1.AssignmentValue) {
	s.t.Helper()
	s.assignments.await(s.t, "the new content on "+worker, func(all map[string]*nereidv1.AssignmentValue) bool {
		value = byWorker(all)[worker]
		return len(value.GetVersions()) == 2 && value.GetVersions()[1].GetModel().GetGeneration() == generation
	})
	return value
}

// One of two workers cannot load an update for a while. The other has it ready.
func TestPollLoadsAgainWhatOneWorkerCouldNotLoadForAWhile(t *testing.T) {
	for _, reason := range []errs.Reason{errs.CacheFull, errs.StoreUnreachable, errs.DeviceMemory} {
		t.Run(string(reason), func(t *testing.T) {
			s := newScene(t, polled)
			v := s.store.actor("v")
			first := s.model("the first content", whole).GetVersions()[0].GetGeneration()
			v.say(runs(s.assigned("v", "m"), nil))
			write(t, filepath.Join(s.root, "m/1/f"), "two")
			generation := s.retried(first)
			for range 2 {
				s.worker.say(runs(s.assignedBoth("w", generation), nil))
				failed := runs(s.assignedBoth("v", generation), map[uint64]string{generation: "not now"})
				failed[1].Reason = string(reason)
				v.say(failed)
				back := s.model("the fall back", func(m *nereidv1.ModelValue) bool {
					return whole(m) && m.GetFailure() != "" || swapping(m) && m.GetVersions()[0].GetGeneration() > generation
				})
				if serving := append(back.GetPrevious().GetVersions(), back.GetVersions()...)[0]; serving.GetGeneration() != first {
					t.Errorf("meanwhile %v serves", serving)
				}
				generation = s.retried(generation)
			}
			s.worker.say(runs(s.assignedBoth("w", generation), nil))
			v.say(runs(s.assignedBoth("v", generation), nil))
			s.model("the new content", func(m *nereidv1.ModelValue) bool {
				return whole(m) && m.GetVersions()[0].GetGeneration() == generation && m.GetFailure() == ""
			})
		})
	}
}

// An update for which no worker has memory is loaded when one has.
func TestPollLoadsAgainWhatHadNoMemory(t *testing.T) {
	var value *nereidv1.WorkerValue
	s := newSceneOn(t, func(v *nereidv1.WorkerValue) { value, v.MemoryBudgetBytes = proto.CloneOf(v), 10 }, polled)
	s.model("the first content", whole)
	write(t, filepath.Join(s.root, "m/1/f"), "needs more than ten bytes")
	s.model("the want of memory", func(v *nereidv1.ModelValue) bool {
		return strings.Contains(v.GetFailure(), "of memory and worker w has")
	})
	value.MemoryBudgetBytes = 1000
	s.worker.player.say(value)
	s.obey()
	s.model("the new content", func(v *nereidv1.ModelValue) bool {
		return whole(v) && v.GetFailure() == "" && v.GetVersions()[0].GetBytes() == 25
	})
}

// A first content waits for longer after each failure, too, and is loaded in the end.
func TestPollLoadsAFirstContentAgain(t *testing.T) {
	s := newScene(t, polled)
	s.add("p", "1")
	generation := uint64(0)
	another := func(v *nereidv1.ModelValue) bool { return v != nil && v.GetVersions()[0].GetGeneration() > generation }
	for range 3 {
		generation = s.value("p", "another try", another).GetVersions()[0].GetGeneration()
		var should *nereidv1.AssignmentValue
		s.assignments.await(t, "the try on the worker", func(all map[string]*nereidv1.AssignmentValue) bool {
			should = byWorker(all)["w"]
			return len(should.GetVersions()) == 2 && should.GetVersions()[1].GetModel().GetGeneration() == generation
		})
		failed := runs(should, map[uint64]string{generation: "the disk is full"})
		failed[1].Reason = string(errs.CacheFull)
		s.worker.say(failed)
	}
	s.value("p", "another try", another)
}
