// Package publish turns snapshots and placements into the values of the state
// buckets, and tells what has to be written for the buckets to hold them.
//
// # Generations
//
// A version's generation names one content of it: files and configuration.
// It must grow with each change and never come back for other content, not
// after a restart, under another leader, or when a model was deleted and added
// again. So it is taken from the one counter that outlives all of these: the
// models bucket's revision. A version that is new or changed gets the highest
// revision that the leader has seen, plus one. The leader reads the whole
// bucket, deletions included, before it writes, and each write states the
// revision that it replaces. A write that comes through therefore has a
// generation above the revision of every earlier write of that key, and with
// it above every earlier generation, since each of those was at most the
// revision of the write that brought it.
package publish

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/infer"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/internal/snapshot"
)

// Models is what the bucket models holds.
type Models map[string]Model

// Model is one key's value and revision. Values are shared and never changed.
type Model struct {
	Value    *nereidv1.ModelValue
	Revision uint64
}

// ModelWrite is one change of the bucket models.
type ModelWrite struct {
	Name string
	// Value is nil for a deletion.
	Value *nereidv1.ModelValue
	// Replaces is the revision that the key has; 0 if there is no such key.
	Replaces uint64
}

// DiffModels gives the writes after which the bucket holds the snapshot and
// nothing else: deletions first, so that whoever has seen the last write has
// seen them all, then values, each in the order of names. seen is the highest
// revision of the bucket that the caller knows of.
func DiffModels(snap *snapshot.Snapshot, stored Models, seen uint64) []ModelWrite {
	wanted := make(map[string]bool, len(snap.Models))
	for _, m := range snap.Models {
		wanted[m.Name] = true
	}
	var writes []ModelWrite
	for _, name := range slices.Sorted(maps.Keys(stored)) {
		if !wanted[name] {
			writes = append(writes, ModelWrite{Name: name, Replaces: stored[name].Revision})
		}
	}
	for _, m := range snap.Models {
		old := stored[m.Name]
		next := modelValue(m, old.Value, seen+1)
		if old.Value == nil || !proto.Equal(old.Value, next) {
			writes = append(writes, ModelWrite{Name: m.Name, Value: next, Replaces: old.Revision})
		}
	}
	return writes
}

// Refused is the value of a model whose own one the bucket does not take.
func Refused(name, problem string) *nereidv1.ModelValue {
	return &nereidv1.ModelValue{Schema: nereidv1.Schema, Name: name, Problem: problem}
}

// modelValue is the value of a model that had the value old, or none.
func modelValue(m snapshot.Model, old *nereidv1.ModelValue, generation uint64) *nereidv1.ModelValue {
	v := &nereidv1.ModelValue{
		Schema:  nereidv1.Schema,
		Name:    m.Name,
		Config:  m.Config,
		Url:     m.URL,
		Problem: m.Problem,
		Labels:  old.GetLabels(),
	}
	same := proto.Equal(old.GetConfig(), m.Config)
	for _, version := range m.Versions {
		next := &nereidv1.ModelVersion{
			Version:    version.Number,
			Generation: generation,
			Digest:     version.Digest,
			Url:        version.URL,
			Desired:    nereidv1.DesiredState_DESIRED_STATE_SERVE,
			Problem:    version.Problem,
		}
		if was := find(old, version.Number); same && was.GetDigest() == version.Digest && was.GetGeneration() > 0 {
			next.Generation = was.GetGeneration()
			if placeable(next) {
				next.Problem = was.GetProblem() // the placement's, which [MarkUnplaced] keeps
			}
		}
		v.Versions = append(v.Versions, next)
	}
	return v
}

// MarkUnplaced gives the writes after which each version that could be served
// has the cause in unplaced, or no problem.
func MarkUnplaced(stored Models, unplaced map[infer.ModelRef]string) []ModelWrite {
	var writes []ModelWrite
	for _, name := range slices.Sorted(maps.Keys(stored)) {
		old := stored[name]
		next := proto.CloneOf(old.Value)
		for _, version := range next.GetVersions() {
			if placeable(version) {
				version.Problem = unplaced[ref(name, version)]
			}
		}
		if !proto.Equal(old.Value, next) {
			writes = append(writes, ModelWrite{Name: name, Value: next, Replaces: old.Revision})
		}
	}
	return writes
}

// placeable versions have content, so that any problem of theirs is one of
// placement.
func placeable(v *nereidv1.ModelVersion) bool {
	return v.GetDesired() == nereidv1.DesiredState_DESIRED_STATE_SERVE && v.GetDigest() != ""
}

func find(m *nereidv1.ModelValue, number int64) *nereidv1.ModelVersion {
	for _, v := range m.GetVersions() {
		if v.GetVersion() == number {
			return v
		}
	}
	return nil
}

func ref(name string, v *nereidv1.ModelVersion) infer.ModelRef {
	return infer.ModelRef{Name: name, Version: v.GetVersion(), Generation: v.GetGeneration()}
}
