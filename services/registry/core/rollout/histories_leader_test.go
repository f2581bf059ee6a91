package rollout_test

import (
	"maps"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/state"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/place"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
	"github.com/nereid-serving/nereid/services/registry/core/rollout"
)

// elect has another leader begin, which knows the buckets alone. Until then gateways
// have caught up: a leadership ends with a lease.
func (f *fleet) elect() {
	f.learn()
	f.leader = &leader{draining: make(map[infer.ModelRef]drained), rejected: rollout.NewRejections(time.Second, time.Minute)}
}

// lead is one step of the leader, in the order of the registry's: what the repository
// has, how far the workers are, and what they should run.
func (f *fleet) lead() {
	for _, step := range []func() bool{f.scan, f.place, f.advance, f.place} {
		if !step() {
			f.deaths++
			f.writable = -1
			f.elect()
			return
		}
	}
}

// write changes a bucket, unless the leader has died.
func (f *fleet) write(change func()) bool {
	if f.writable == 0 {
		return false
	}
	f.writable--
	change()
	return true
}

// put writes a model's value. What leaves it drains.
func (f *fleet) put(w publish.ModelWrite) bool {
	return f.write(func() {
		f.revision++
		if w.Value == nil || w.Value.GetRemoved() {
			f.excused[w.Key] = true
		}
		if w.Value == nil {
			delete(f.models, w.Key)
			return
		}
		for _, v := range w.Value.GetVersions() {
			ref := publish.IDOf(w.Value).Version(v.GetVersion(), v.GetGeneration())
			if c := f.files[w.Key]; f.contents[ref] == nil && c != nil && v.GetDigest() == c.digest {
				f.contents[ref] = c
			}
		}
		before := f.models[w.Key].Value
		serving := publish.Serving(before, publish.Observed{})
		versions, err := publish.Placeable(infer.ParseModelID(w.Key), serving.GetConfig(), serving.GetVersions(), nil)
		if err != nil {
			f.fail("the configuration of model %s: %v", w.Key, err)
		}
		for _, v := range versions {
			if v.Bytes, v.Replaced = f.bytesOf(v.Model), true; !publish.Contains(w.Value, v.Model) && !f.rules.undrained {
				f.leader.draining[v.Model] = drained{v, f.revision}
			}
		}
		f.models[w.Key] = publish.Model{Value: w.Value, Revision: f.revision}
	})
}

// scan publishes what the repository has, but for contents that have failed.
func (f *fleet) scan() bool {
	snap := new(catalog.Snapshot)
	for _, name := range slices.Sorted(maps.Keys(f.files)) {
		snap.Models = append(snap.Models, found(name, f.files[name]))
	}
	known := publish.Observed{
		Failed: func(ref infer.ModelRef) bool { return f.observed(ref.Name).Failed(ref) }, MarkRemoved: true,
	}
	for _, w := range publish.DiffModels(snap, f.models, f.revision, known) {
		failed := f.leader.rejected.Value(w.Key)
		bar := failed != nil && f.files[w.Key] != nil && digestOf(failed) == f.files[w.Key].digest && !f.leader.rejected.Due(w.Key, f.now)
		if !bar && !f.put(w) {
			return false
		}
	}
	return true
}

func found(name string, c *content) catalog.Model {
	config := &inference.ModelConfig{
		Name: name, Backend: "echo",
		Input:         []*inference.ModelInput{{Name: "x", DataType: inference.DataType_TYPE_FP32, Dims: []int64{1}}},
		Output:        []*inference.ModelOutput{{Name: "y", DataType: inference.DataType_TYPE_FP32, Dims: []int64{1}}},
		InstanceGroup: []*inference.ModelInstanceGroup{{Name: "g", Count: 1, Kind: inference.ModelInstanceGroup_KIND_CPU}},
		Parameters:    map[string]*inference.ModelParameter{modelconfig.ReplicasKey: {StringValue: "1"}},
	}
	modelconfig.Normalize(config, modelconfig.Directory{Name: name})
	return catalog.Model{
		Name: name, URL: "file:///r/" + name, Config: config, Versions: []catalog.Version{{Number: 1, Digest: c.digest, URL: "file:///r/" + name + "/1"}},
	}
}

func digestOf(v *nereidv1.ModelValue) string { return v.GetVersions()[0].GetDigest() }

// advance ends the updates that have come so far.
func (f *fleet) advance() bool {
	for _, key := range slices.Sorted(maps.Keys(f.models)) {
		m := f.models[key]
		if m.Value.GetPrevious() == nil {
			continue
		}
		progress, causes := f.observed(key).Evaluate(m.Value)
		if f.rules.hasty && progress == rollout.Pending {
			progress = rollout.Ready
		}
		switch {
		case progress == rollout.Ready && f.known >= m.Revision:
			if !f.put(publish.ModelWrite{Key: key, Value: publish.Swapped(m.Value)}) {
				return false
			}
			f.leader.rejected.Remove(key)
			f.swapped++
		case progress == rollout.Failed && !f.rules.stubborn:
			failure := rollout.Failure(publish.IDOf(m.Value), causes)
			f.leader.rejected.Add(key, m.Value, f.observed(key).Passing(m.Value), f.now)
			if !f.put(publish.ModelWrite{Key: key, Value: publish.RolledBack(m.Value, failure, causes)}) {
				return false
			}
			f.rolledBack++
		}
	}
	return true
}

// observed joins what workers should run of a model and what they have.
func (f *fleet) observed(key string) rollout.Workers {
	o := rollout.NewWorkers()
	for id, w := range f.workers {
		says := new(nereidv1.InstancesValue)
		for ref, v := range w.loaded {
			if ref.Name == key {
				says.Versions = append(says.Versions, v)
			}
		}
		o.Add(f.assigned[id][key], says)
	}
	return o
}

// place brings the assignments up to date.
func (f *fleet) place() bool {
	maps.DeleteFunc(f.leader.draining, func(ref infer.ModelRef, d drained) bool {
		return f.known >= d.revision || publish.Contains(f.models[ref.Name].Value, ref)
	})
	versions, _ := publish.Versions(f.models, nil)
	for _, d := range f.leader.draining {
		versions = append(versions, d.version)
	}
	for i := range versions {
		f.locate(&versions[i])
	}
	var workers []place.Worker
	for id, w := range f.workers {
		workers = append(workers, place.Worker{ID: id, Kind: modelconfig.KindCPU, Pool: infer.DefaultPool, Budget: w.budget, Leaving: w.leaving})
		if f.rules.crowded {
			workers[len(workers)-1].Budget = 0
		}
	}
	if len(workers) == 0 {
		return true
	}
	placement := place.Assign(versions, workers)
	for ref := range placement.Unplaced { // a worker that leaves is not held up for what nobody else can run
		for _, w := range f.workers {
			if w.leaving && w.loaded[ref] != nil {
				f.serving[ref.Name] = false
			}
		}
	}
	for _, w := range publish.MarkUnplaced(f.models, placement.Unplaced) {
		if !f.put(w) {
			return false
		}
	}
	parts := publish.Parts(placement)
	for _, adds := range []bool{false, true} {
		for _, id := range slices.Sorted(maps.Keys(f.workers)) {
			for _, key := range names() {
				part, now := parts[publish.Part{Worker: id, Model: key}], f.assigned[id][key]
				if publish.Assigns(now, part) || publish.Adds(now, part) != adds && !f.rules.unordered {
					continue
				}
				if !f.write(func() { f.assign(id, key, publish.Assign(id, part, f.revision, 1)) }) {
					return false
				}
			}
		}
	}
	return true
}

func (f *fleet) assign(id, key string, v *nereidv1.AssignmentValue) {
	if f.assigned[id] == nil {
		f.assigned[id] = make(map[string]*nereidv1.AssignmentValue)
	}
	f.assigned[id][key] = v
}

// locate says of a version what it takes, and where it is ready, as the gateway knows.
func (f *fleet) locate(v *place.Version) {
	v.Bytes, v.AssignedTo = f.bytesOf(v.Model), make(map[string]bool)
	for id, w := range f.workers {
		if f.isAssigned(id, v.Model) {
			v.AssignedTo[id] = w.loaded[v.Model].GetState() == ready
		}
	}
}

func (f *fleet) isAssigned(id string, ref infer.ModelRef) bool {
	return slices.ContainsFunc(f.assigned[id][ref.Name].GetVersions(), func(a *nereidv1.AssignedVersion) bool { return state.RefOf(a.GetModel()) == ref })
}

// bytesOf is what an instance of a loaded version takes.
func (f *fleet) bytesOf(ref infer.ModelRef) int64 {
	if c := f.contents[ref]; c != nil {
		return c.bytes
	}
	return 0
}
