// Package publish turns snapshots and placements into the values of the state
// buckets, and returns what has to be written for the buckets to hold them.
//
// # Generations
//
// A version's generation names its files and configuration as loaded together.
// It must grow with each change and never come back for others, not
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
	"cmp"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/infer"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
)

// Models is what the bucket models holds, by key.
type Models map[string]Model

// Model is one key's value and revision. Values are shared and never changed.
type Model struct {
	Value    *nereidv1.ModelValue
	Revision uint64
}

// ModelWrite is one change of the bucket models.
type ModelWrite struct {
	Key string
	// Value is nil for a deletion.
	Value *nereidv1.ModelValue
	// Replaces is the revision that the key has; 0 if there is no such key.
	Replaces uint64
}

// maxRemoved bounds the values that are kept of removed models.
const maxRemoved = 1000

// DiffModels gives the writes after which the bucket holds the snapshot and
// nothing else, but for removed models: deletions first, so that who has seen the last write has
// seen them all, then values, in the order of the snapshot. seen is the highest
// revision of the bucket that the caller knows of.
func DiffModels(snap *catalog.Snapshot, stored Models, seen uint64, o Observed) []ModelWrite {
	wanted := make(map[string]bool, len(snap.Models))
	for _, m := range snap.Models {
		wanted[m.ID().Key()] = true
	}
	var writes []ModelWrite
	removed := 0
	byAge := slices.SortedFunc(maps.Keys(stored), func(a, b string) int { return cmp.Compare(stored[b].Revision, stored[a].Revision) })
	for _, key := range byAge { // the newest first
		value := stored[key].Value
		if wanted[key] {
			continue
		}
		if removed++; !o.MarkRemoved || len(value.GetVersions()) == 0 || removed > maxRemoved {
			writes = append(writes, ModelWrite{Key: key, Replaces: stored[key].Revision})
		} else if !value.GetRemoved() {
			writes = append(writes, ModelWrite{Key: key, Value: Removed(value), Replaces: stored[key].Revision})
		}
	}
	slices.SortFunc(writes, func(a, b ModelWrite) int { return strings.Compare(a.Key, b.Key) })
	for _, m := range snap.Models {
		if w, changed := DiffModel(m, stored[m.ID().Key()], seen, o); changed {
			writes = append(writes, w)
		}
	}
	return writes
}

// DiffModel gives the write after which the bucket holds one model, and
// whether one is needed.
func DiffModel(m catalog.Model, old Model, seen uint64, o Observed) (ModelWrite, bool) {
	next := Next(m, old.Value, seen+1, o)
	return ModelWrite{Key: m.ID().Key(), Value: next, Replaces: old.Revision}, old.Value == nil || !proto.Equal(old.Value, next)
}

// TooLarge is the value of a model whose own one the bucket does not take:
// what serves goes on.
func TooLarge(old *nereidv1.ModelValue, id infer.ModelID, problem string) *nereidv1.ModelValue {
	if Serving(old, Observed{}) != nil {
		return WithFailure(old, problem)
	}
	return &nereidv1.ModelValue{Schema: nereidv1.Schema, Namespace: id.Namespace, Name: id.Name, Problem: problem}
}

// MarkUnplaced gives the writes after which each version that could be served
// has the cause in unplaced, or no problem.
func MarkUnplaced(stored Models, unplaced map[infer.ModelRef]string) []ModelWrite {
	var writes []ModelWrite
	for _, key := range slices.Sorted(maps.Keys(stored)) {
		old := stored[key]
		if marked(old.Value, unplaced) {
			continue
		}
		next := proto.CloneOf(old.Value)
		for _, version := range next.GetVersions() {
			if placeable(version) {
				version.Problem = unplaced[ref(IDOf(next), version)]
			}
		}
		writes = append(writes, ModelWrite{Key: key, Value: next, Replaces: old.Revision})
	}
	return writes
}

// marked reports whether the versions have the problems that they should.
func marked(v *nereidv1.ModelValue, unplaced map[infer.ModelRef]string) bool {
	return !slices.ContainsFunc(v.GetVersions(), func(version *nereidv1.ModelVersion) bool {
		return placeable(version) && version.GetProblem() != unplaced[ref(IDOf(v), version)]
	})
}

// placeable versions have content, so that any problem of theirs is one of
// placement.
func placeable(v *nereidv1.ModelVersion) bool {
	return v.GetDesired() == nereidv1.DesiredState_DESIRED_STATE_SERVE && v.GetDigest() != ""
}

func find(versions []*nereidv1.ModelVersion, number int64) *nereidv1.ModelVersion {
	for _, v := range versions {
		if v.GetVersion() == number {
			return v
		}
	}
	return nil
}

// Find gives the version of a value with a generation, to serve or serving
// until others can; nil if there is none.
func Find(v *nereidv1.ModelValue, r infer.ModelRef) *nereidv1.ModelVersion {
	for _, version := range slices.Concat(v.GetVersions(), v.GetPrevious().GetVersions()) {
		if ref(IDOf(v), version) == r {
			return version
		}
	}
	return nil
}

// IDOf names the model of a value.
func IDOf(v *nereidv1.ModelValue) infer.ModelID {
	return infer.ModelID{Namespace: v.GetNamespace(), Name: v.GetName()}
}

func ref(id infer.ModelID, v *nereidv1.ModelVersion) infer.ModelRef {
	return id.Version(v.GetVersion(), v.GetGeneration())
}
