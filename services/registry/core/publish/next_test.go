package publish_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
)

// found is a model with one version for each digest, from 1 on; an empty one
// is a version that cannot be read.
func found(digests ...string) catalog.Model {
	m := model("m", "", 4)
	m.Versions = nil
	for i, digest := range digests {
		v := catalog.Version{Number: int64(i + 1), Digest: digest, URL: "file:///r/m/v"}
		if digest == "" {
			v.Problem = "cannot be read"
		}
		m.Versions = append(m.Versions, v)
	}
	return m
}

func grouped(m catalog.Model, count int32) catalog.Model {
	m.Config = proto.CloneOf(m.Config)
	m.Config.InstanceGroup = []*inference.ModelInstanceGroup{{Name: "g", Count: count, Kind: inference.ModelInstanceGroup_KIND_CPU}}
	return m
}

// shape is what the tests look at of a value: generations by version.
type shape struct {
	Versions, Previous map[int64]uint64
	Failure, Problem   string
}

func shapeOf(v *nereidv1.ModelValue) shape {
	return shape{generations(v.GetVersions()), generations(v.GetPrevious().GetVersions()), v.GetFailure(), v.GetProblem()}
}

func generations(versions []*nereidv1.ModelVersion) map[int64]uint64 {
	var all map[int64]uint64
	for _, v := range versions {
		if all == nil {
			all = make(map[int64]uint64)
		}
		all[v.GetVersion()] = v.GetGeneration()
	}
	return all
}

func TestWhatServesGoesOn(t *testing.T) {
	bad := catalog.Model{Name: "m", Problem: "config.pbtxt: broken"}
	first := publish.Next(found("a", "b"), nil, 1, publish.Observed{})
	counted := publish.Next(grouped(found("a", "b"), 2), nil, 1, publish.Observed{})
	swapping := publish.Next(found("a", "c"), first, 2, publish.Observed{})
	unplaced := proto.CloneOf(swapping)
	unplaced.Versions[1].Problem = "no worker has the memory"
	tests := map[string]struct {
		old  *nereidv1.ModelValue
		next catalog.Model
		want shape
	}{
		"nothing before":                  {nil, found("a"), shape{Versions: map[int64]uint64{1: 9}}},
		"broken, nothing before":          {nil, bad, shape{Problem: "config.pbtxt: broken"}},
		"the same":                        {first, found("a", "b"), shape{Versions: map[int64]uint64{1: 1, 2: 1}}},
		"one version changes":             {first, found("a", "c"), shape{Versions: map[int64]uint64{1: 1, 2: 9}, Previous: map[int64]uint64{1: 1, 2: 1}}},
		"a version comes":                 {first, found("a", "b", "c"), shape{Versions: map[int64]uint64{1: 1, 2: 1, 3: 9}, Previous: map[int64]uint64{1: 1, 2: 1}}},
		"a version goes":                  {first, found("a"), shape{Versions: map[int64]uint64{1: 1, 2: 1}}}, // the second is unloaded
		"the configuration breaks":        {first, bad, shape{Versions: map[int64]uint64{1: 1, 2: 1}, Failure: "config.pbtxt: broken"}},
		"a version cannot be read":        {first, found("a", ""), shape{Versions: map[int64]uint64{1: 1, 2: 1}, Failure: "cannot be read"}},
		"a new version cannot be read":    {first, found("a", "b", ""), shape{Versions: map[int64]uint64{1: 1, 2: 1}, Failure: "cannot be read"}},
		"a group comes":                   {first, grouped(found("a", "b"), 3), shape{Versions: map[int64]uint64{1: 9, 2: 9}, Previous: map[int64]uint64{1: 1, 2: 1}}},
		"counts change":                   {counted, grouped(found("a", "b"), 3), shape{Versions: map[int64]uint64{1: 1, 2: 1}, Previous: map[int64]uint64{1: 1, 2: 1}}},
		"counts and a version's files":    {counted, grouped(found("a", "c"), 3), shape{Versions: map[int64]uint64{1: 1, 2: 9}, Previous: map[int64]uint64{1: 1, 2: 1}}},
		"the same during a swap":          {swapping, found("a", "c"), shape{Versions: map[int64]uint64{1: 1, 2: 2}, Previous: map[int64]uint64{1: 1, 2: 1}}},
		"the same, without a place":       {unplaced, found("a", "c"), shape{Versions: map[int64]uint64{1: 1, 2: 2}, Previous: map[int64]uint64{1: 1, 2: 1}}},
		"another content during a swap":   {swapping, found("a", "d"), shape{Versions: map[int64]uint64{1: 1, 2: 9}, Previous: map[int64]uint64{1: 1, 2: 1}}},
		"back to the old during a swap":   {swapping, found("a", "b"), shape{Versions: map[int64]uint64{1: 1, 2: 1}}},
		"the config breaks during a swap": {swapping, bad, shape{Versions: map[int64]uint64{1: 1, 2: 2}, Previous: map[int64]uint64{1: 1, 2: 1}, Failure: "config.pbtxt: broken"}},
		"fewer versions after an unload":  {publish.Unloaded(first), found("a"), shape{Versions: map[int64]uint64{1: 9, 2: 1}}},
		"broken after an unload":          {publish.Unloaded(first), bad, shape{Problem: "config.pbtxt: broken"}},
		"loaded after an unload":          {publish.Unloaded(first), found("a", "b"), shape{Versions: map[int64]uint64{1: 9, 2: 9}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			before := proto.CloneOf(tt.old)
			if diff := cmp.Diff(tt.want, shapeOf(publish.Next(tt.next, tt.old, 9, publish.Observed{}))); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(before, tt.old, protocmp.Transform()); diff != "" {
				t.Errorf("the old value was changed: %s", diff)
			}
		})
	}
}

// All that a group says but its count asks for another content.
func TestGroupsThatDifferAreLoadedAnew(t *testing.T) {
	base := grouped(found("a"), 2)
	first := publish.Next(base, nil, 1, publish.Observed{})
	for name, edit := range map[string]func(*inference.ModelInstanceGroup){
		"name":         func(g *inference.ModelInstanceGroup) { g.Name = "h" },
		"kind":         func(g *inference.ModelInstanceGroup) { g.Kind = inference.ModelInstanceGroup_KIND_GPU },
		"gpus":         func(g *inference.ModelInstanceGroup) { g.Gpus = []int32{1} },
		"passive":      func(g *inference.ModelInstanceGroup) { g.Passive = true },
		"profile":      func(g *inference.ModelInstanceGroup) { g.Profile = []string{"1"} },
		"host_policy":  func(g *inference.ModelInstanceGroup) { g.HostPolicy = "far" },
		"rate_limiter": func(g *inference.ModelInstanceGroup) { g.RateLimiter = &inference.ModelRateLimiter{Priority: 2} },
	} {
		t.Run(name, func(t *testing.T) {
			next := grouped(found("a"), 2)
			edit(next.Config.InstanceGroup[0])
			want := shape{Versions: map[int64]uint64{1: 9}, Previous: map[int64]uint64{1: 1}}
			if diff := cmp.Diff(want, shapeOf(publish.Next(next, first, 9, publish.Observed{}))); diff != "" {
				t.Error(diff)
			}
		})
	}
	if base.Config.InstanceGroup[0].Count != 2 {
		t.Error("the configuration was changed")
	}
}

// Parameters say how a model is loaded, but for those that say where.
func TestParametersThatDifferAreLoadedAnew(t *testing.T) {
	with := func(name, value string) catalog.Model {
		m := found("a")
		m.Config = proto.CloneOf(m.Config)
		m.Config.Parameters = map[string]*inference.ModelParameter{name: {StringValue: value}}
		return m
	}
	for name, c := range map[string]struct {
		before, after catalog.Model
		generation    uint64
	}{
		"another value":     {with("x", "1"), with("x", "2"), 9},
		"another placement": {with(modelconfig.ReplicasKey, "1"), with(modelconfig.ReplicasKey, "2"), 1},
		"a first placement": {found("a"), with(modelconfig.ReplicasKey, "2"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			next := publish.Next(c.after, publish.Next(c.before, nil, 1, publish.Observed{}), 9, publish.Observed{})
			if got := next.GetVersions()[0].GetGeneration(); got != c.generation {
				t.Errorf("generation %d, want %d", got, c.generation)
			}
		})
	}
}

func TestVersionsAreFoundByTheirGeneration(t *testing.T) {
	value := publish.Next(found("a", "c"), publish.Next(found("a", "b"), nil, 1, publish.Observed{}), 2, publish.Observed{})
	id := publish.IDOf(value)
	for _, c := range []struct {
		version    int64
		generation uint64
		digest     string
	}{{1, 1, "a"}, {2, 2, "c"}, {2, 1, "b"}, {2, 3, ""}, {3, 1, ""}} {
		if got := publish.Find(value, id.Version(c.version, c.generation)).GetDigest(); got != c.digest {
			t.Errorf("version %d of generation %d has the digest %q, want %q", c.version, c.generation, got, c.digest)
		}
	}
}

// A content whose files were others when it was loaded may be good now.
func TestStaleContentIsLoadedAgain(t *testing.T) {
	first := publish.Next(found("a"), nil, 1, publish.Observed{})
	o := publish.Observed{
		Failed: func(r infer.ModelRef) bool { return r.Generation == 1 },
		Stale:  func(r infer.ModelRef) bool { return r.Generation == 1 },
	}
	second := publish.Next(found("a"), first, 2, o)
	if got := shapeOf(second); got.Versions[1] != 2 || got.Previous != nil {
		t.Errorf("the same files are not loaded again: %+v", got)
	}
	if got := shapeOf(publish.Next(found("a"), second, 3, o)); got.Versions[1] != 2 {
		t.Errorf("what has not failed is loaded again: %+v", got)
	}
}

// What stands for a digest changes with every touch, and says nothing new.
func TestFingerprintAloneIsNoChange(t *testing.T) {
	m := found("a")
	m.Versions[0].Fingerprint = "stat:1"
	old := publish.Model{Value: publish.Next(m, nil, 1, publish.Observed{}), Revision: 1}
	if got := old.Value.GetVersions()[0].GetFingerprint(); got != "stat:1" {
		t.Errorf("fingerprint %q", got)
	}
	m.Versions[0].Fingerprint = "stat:2"
	if _, changed := publish.DiffModel(m, old, 1, publish.Observed{}); changed {
		t.Error("it is written anew")
	}
}

func TestFailedContentServesNobody(t *testing.T) {
	first := publish.Next(found("a"), nil, 1, publish.Observed{})
	failed := func(infer.ModelRef) bool { return true }
	if got := shapeOf(publish.Next(found("b"), first, 2, publish.Observed{Failed: failed})); got.Previous != nil || got.Versions[1] != 2 {
		t.Errorf("a failed content is kept: %+v", got)
	}
	if got := shapeOf(publish.Next(found("a"), first, 2, publish.Observed{Failed: failed})); got.Versions[1] != 1 {
		t.Errorf("the same files are loaded again unasked: %+v", got)
	}
	if got := shapeOf(publish.Next(found("a"), first, 2, publish.Observed{Failed: failed, Retry: true})); got.Versions[1] != 2 {
		t.Errorf("the same files are not loaded again when asked for: %+v", got)
	}
}

func TestEndsOfASwap(t *testing.T) {
	first := publish.Next(found("a"), nil, 1, publish.Observed{})
	swapping := publish.Next(found("b", "c"), first, 2, publish.Observed{})
	want := shape{Versions: map[int64]uint64{1: 2, 2: 2}}
	if diff := cmp.Diff(want, shapeOf(publish.Swapped(swapping))); diff != "" {
		t.Errorf("swapped: %s", diff)
	}
	back := publish.RolledBack(swapping, "load failed", map[int64]string{1: "bad", 2: "worse"})
	want = shape{Versions: map[int64]uint64{1: 1, 2: 2}, Failure: "load failed"}
	if diff := cmp.Diff(want, shapeOf(back)); diff != "" {
		t.Errorf("fallen back: %s", diff)
	}
	if v := back.GetVersions(); v[0].GetProblem() != "" || v[1].GetProblem() != "worse" {
		t.Errorf("fallen back: %v", v)
	}
	if got := publish.Unloaded(swapping); got.GetPrevious() != nil || got.GetVersions()[0].GetGeneration() != 1 {
		t.Errorf("unloaded: %v, want what the workers hold", got)
	}
}

func TestClassLabelsStayWithTheirContent(t *testing.T) {
	m := catalog.Model{
		Name: "m", Config: &inference.ModelConfig{Name: "m"}, Labels: map[string][]byte{"y": []byte("cat")},
		Versions: []catalog.Version{{Number: 1, Digest: "a"}},
	}
	first := publish.Next(m, nil, 1, publish.Observed{})
	m.Labels, m.Versions[0].Digest = map[string][]byte{"y": []byte("dog")}, "b"
	second := publish.Next(m, first, 2, publish.Observed{})
	label := func(labels map[string]*nereidv1.ClassLabels) string { return string(labels["y"].GetGzip()) }
	if label(second.GetClassLabels()) != "dog" || label(second.GetPrevious().GetClassLabels()) != "cat" {
		t.Errorf("labels %v beside %v", second.GetClassLabels(), second.GetPrevious().GetClassLabels())
	}
	if back := publish.RolledBack(second, "failed", nil); label(back.GetClassLabels()) != "cat" {
		t.Errorf("after falling back: %v", back.GetClassLabels())
	}
	if out := publish.Unloaded(second); label(out.GetClassLabels()) != "cat" {
		t.Errorf("after unloading: %v", out.GetClassLabels())
	}
}

// wanted is what versions are to be: false for the unloaded ones.
func wanted(v *nereidv1.ModelValue) map[int64]bool {
	all := make(map[int64]bool)
	for _, version := range v.GetVersions() {
		all[version.GetVersion()] = version.GetDesired() == nereidv1.DesiredState_DESIRED_STATE_SERVE
	}
	return all
}

func TestVersionsThatGoStayAsUnloadedOnes(t *testing.T) {
	first := publish.Next(found("a", "b"), nil, 1, publish.Observed{})
	swapping := publish.Next(found("a", "b", "bad", "good"), first, 2, publish.Observed{})
	back := publish.RolledBack(swapping, "failed", map[int64]string{3: "boom"})
	if diff := cmp.Diff(map[int64]bool{1: true, 2: true, 3: true, 4: false}, wanted(back)); diff != "" {
		t.Errorf("after a version of a load has failed (-want +got):\n%s", diff)
	}
	changed := publish.Swapped(publish.Next(found("c"), first, 3, publish.Observed{}))
	if diff := cmp.Diff(map[int64]bool{1: true, 2: false}, wanted(changed)); diff != "" {
		t.Errorf("after a swap to fewer versions (-want +got):\n%s", diff)
	}
	if again := publish.Next(found("c"), changed, 4, publish.Observed{}); !proto.Equal(again, changed) {
		t.Errorf("the same files again: %v, want %v", again, changed)
	}
	withdrawn := publish.Withdrawn(first, map[int64]string{2: "boom"})
	if diff := cmp.Diff(map[int64]bool{1: false, 2: true}, wanted(withdrawn)); diff != "" || !publish.IsWithdrawn(withdrawn) || publish.Serving(withdrawn, publish.Observed{}) != nil {
		t.Errorf("after a version of a first load has failed (-want +got):\n%s", diff)
	}
	for _, v := range []*nereidv1.ModelValue{first, back, changed, publish.Unloaded(first)} {
		if publish.IsWithdrawn(v) {
			t.Errorf("withdrawn: %v", v)
		}
	}
}

func TestUnloadedVersionsAreBounded(t *testing.T) {
	value := publish.Next(found("a"), nil, 1, publish.Observed{})
	for day := range int64(40) {
		m := found("a")
		m.Versions[0].Number = 2 + day
		value = publish.Swapped(publish.Next(m, value, uint64(2+day), publish.Observed{}))
	}
	if n := len(value.GetVersions()); n != 17 || value.GetVersions()[0].GetVersion() != 25 {
		t.Errorf("%d versions from %d on", n, value.GetVersions()[0].GetVersion())
	}
}

func TestRemovedModelsAreBounded(t *testing.T) {
	stored := make(publish.Models)
	for i := range 1003 {
		m := found("a")
		m.Name = fmt.Sprintf("m%04d", i)
		stored[m.Name] = publish.Model{Value: publish.Next(m, nil, 1, publish.Observed{}), Revision: uint64(i + 1)}
	}
	writes := publish.DiffModels(&catalog.Snapshot{}, stored, 2000, publish.Observed{MarkRemoved: true})
	deleted := 0
	for _, w := range writes {
		if w.Value == nil {
			deleted++
			if w.Key > "m0002" {
				t.Errorf("%s is deleted, which is not of the oldest", w.Key)
			}
		} else if !w.Value.GetRemoved() || publish.Contains(w.Value, infer.ModelRef{Name: w.Key, Version: 1, Generation: 1}) {
			t.Errorf("%s is kept as %v", w.Key, w.Value)
		}
	}
	if len(writes) != 1003 || deleted != 3 {
		t.Errorf("%d writes, %d deletions", len(writes), deleted)
	}
	for _, w := range publish.DiffModels(&catalog.Snapshot{}, stored, 2000, publish.Observed{}) {
		if w.Value != nil {
			t.Errorf("a new leader keeps %s", w.Key)
		}
	}
}
