package publish

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
)

// Observed is what the caller knows beyond the values.
type Observed struct {
	// Failed reports that a generation of a version could not be loaded. It
	// may be nil.
	Failed func(infer.ModelRef) bool
	// Stale reports that it failed for no fault of its own: its files
	// were not what they had been. It may be nil.
	Stale func(infer.ModelRef) bool
	// Retry loads failed versions again.
	Retry bool
	// Pools are those that are configured.
	Pools Pools
	// UnloadDuplicates unloads a model that two repositories have, as a poll
	// does; else the versions that serve go on.
	UnloadDuplicates bool
	// MarkRemoved keeps the values of models that no repository has any more, as
	// [Removed] has them; else they are deleted.
	MarkRemoved bool
}

// again reports whether a version is to be loaded again.
func (o Observed) again(id infer.ModelID, v *nereidv1.ModelVersion) bool {
	return o.Retry && o.failed(id, v) || o.Stale != nil && o.Stale(ref(id, v))
}

func (o Observed) failed(id infer.ModelID, v *nereidv1.ModelVersion) bool {
	return o.Failed != nil && o.Failed(ref(id, v))
}

// Next is the value by which a model that has the value old, or none, becomes
// what was found of it.
//
// What serves goes on serving: a new generation is put beside it, and one that is
// known to be bad only leaves its cause. A version whose files are the same
// and whose configuration differs in nothing that loading depends on keeps its
// generation, and with it its instances.
func Next(m catalog.Model, old *nereidv1.ModelValue, generation uint64, o Observed) *nereidv1.ModelValue {
	next := target(m, old, generation, o)
	serving := Serving(old, o)
	if serving == nil || m.Duplicate && o.UnloadDuplicates {
		next.Pool = poolValue(o.Pools.OfModel(m.ID(), m.Config))
		if next.GetProblem() == "" {
			addUnloaded(next, old.GetVersions())
		}
		return next
	}
	next.Pool = old.GetPool() // until it is ready in another
	if next.GetProblem() != "" {
		return WithFailure(old, next.GetProblem())
	}
	if cause := newProblem(next, old); cause != "" {
		return WithFailure(old, cause)
	}
	if within(next, serving) && sameCounts(next.GetConfig(), serving.GetConfig()) {
		addUnloaded(next, slices.Concat(serving.GetVersions(), old.GetVersions()))
		return next // there is nothing to wait for
	}
	next.Previous = serving
	addUnloaded(next, slices.DeleteFunc(slices.Clone(old.GetVersions()), func(v *nereidv1.ModelVersion) bool { return !unloaded(v) }))
	return next
}

// Serving is what takes requests under a value: the generation that goes on
// serving, or the versions that are to. It is nil if there is none.
func Serving(v *nereidv1.ModelValue, o Observed) *nereidv1.ModelContent {
	if v.GetPrevious() != nil {
		return v.GetPrevious()
	}
	content := &nereidv1.ModelContent{Config: v.GetConfig(), Url: v.GetUrl(), Overridden: v.GetOverridden(), ReplacedConfig: v.GetReplacedConfig(), ClassLabels: v.GetClassLabels()}
	for _, version := range v.GetVersions() {
		if placeable(version) && version.GetProblem() == "" && !o.failed(IDOf(v), version) {
			content.Versions = append(content.Versions, version)
		}
	}
	if len(content.Versions) == 0 {
		return nil
	}
	return content
}

// Contains reports whether a value has a loaded version that is to serve, or
// that serves until others can.
func Contains(v *nereidv1.ModelValue, r infer.ModelRef) bool {
	version := Find(v, r)
	return version != nil && !unloaded(version)
}

func unloaded(v *nereidv1.ModelVersion) bool {
	return v.GetDesired() == nereidv1.DesiredState_DESIRED_STATE_UNLOADED
}

// maxUnloaded bounds the unloaded versions that a value keeps: a model that is
// trained every day has another version each day.
const maxUnloaded = 16

// addUnloaded adds the versions of before that next does not have, as unloaded
// ones: requests for them fail as not ready, rather than as
// not found. The highest numbers are kept.
func addUnloaded(next *nereidv1.ModelValue, before []*nereidv1.ModelVersion) {
	for _, was := range before {
		if find(next.GetVersions(), was.GetVersion()) == nil {
			next.Versions = append(next.Versions, asUnloaded(was))
		}
	}
	slices.SortFunc(next.Versions, byNumber)
	excess := -maxUnloaded
	for _, v := range next.GetVersions() {
		if unloaded(v) {
			excess++
		}
	}
	next.Versions = slices.DeleteFunc(next.Versions, func(v *nereidv1.ModelVersion) bool {
		drop := unloaded(v) && excess > 0
		if drop {
			excess--
		}
		return drop
	})
}

func asUnloaded(v *nereidv1.ModelVersion) *nereidv1.ModelVersion {
	v = proto.CloneOf(v)
	v.Desired, v.Problem = nereidv1.DesiredState_DESIRED_STATE_UNLOADED, ""
	return v
}

// Swapped is the value after all of its versions have become ready.
func Swapped(v *nereidv1.ModelValue) *nereidv1.ModelValue {
	next := proto.CloneOf(v)
	next.Previous, next.Failure = nil, ""
	addUnloaded(next, v.GetPrevious().GetVersions())
	return next
}

// SameButInstances reports whether what a value asks for differs from what serves in its
// instances and version policy alone.
func SameButInstances(v *nereidv1.ModelValue) bool {
	serving := v.GetPrevious()
	if serving == nil || slices.ContainsFunc(v.GetVersions(), func(version *nereidv1.ModelVersion) bool {
		was := find(serving.GetVersions(), version.GetVersion())
		return was != nil && placeable(version) && was.GetDigest() != version.GetDigest()
	}) {
		return false
	}
	other := proto.CloneOf(v.GetConfig())
	other.InstanceGroup, other.VersionPolicy = serving.GetConfig().GetInstanceGroup(), serving.GetConfig().GetVersionPolicy()
	return proto.Equal(other, serving.GetConfig())
}

// Replaced lists the loaded versions of what serves that a value does not ask for.
func Replaced(v *nereidv1.ModelValue) (refs []infer.ModelRef) {
	for _, was := range v.GetPrevious().GetVersions() {
		if next := find(v.GetVersions(), was.GetVersion()); next.GetGeneration() != was.GetGeneration() {
			refs = append(refs, ref(IDOf(v), was))
		}
	}
	return refs
}

// RolledBack is the value after versions have failed, by number: what served
// before, with the failure, and the versions that it does not have: those that
// failed with their causes, the others unloaded.
func RolledBack(v *nereidv1.ModelValue, failure string, failed map[int64]string) *nereidv1.ModelValue {
	serving := v.GetPrevious()
	next := &nereidv1.ModelValue{
		Schema: nereidv1.Schema, Namespace: v.GetNamespace(), Name: v.GetName(), Labels: v.GetLabels(), Failure: failure,
		Config: serving.GetConfig(), Url: serving.GetUrl(), Versions: slices.Clone(serving.GetVersions()), Overridden: serving.GetOverridden(),
		ReplacedConfig: serving.GetReplacedConfig(), ClassLabels: serving.GetClassLabels(), Pool: v.GetPool(),
	}
	for _, version := range v.GetVersions() {
		if cause, bad := failed[version.GetVersion()]; bad && find(next.Versions, version.GetVersion()) == nil {
			next.Versions = append(next.Versions, asFailed(version, cause))
		}
	}
	addUnloaded(next, v.GetVersions())
	return next
}

// asFailed is a version that is not loaded again, with the cause.
func asFailed(v *nereidv1.ModelVersion, cause string) *nereidv1.ModelVersion {
	return &nereidv1.ModelVersion{
		Version: v.GetVersion(), Generation: v.GetGeneration(), Url: v.GetUrl(), Desired: nereidv1.DesiredState_DESIRED_STATE_SERVE, Problem: cause,
	}
}

// Withdrawn is the value of a model without versions that served before, after
// versions have failed, by number: the others of the load are unloaded.
func Withdrawn(v *nereidv1.ModelValue, failed map[int64]string) *nereidv1.ModelValue {
	next := proto.CloneOf(v)
	for i, version := range next.GetVersions() {
		if cause, bad := failed[version.GetVersion()]; bad {
			next.Versions[i] = asFailed(version, cause)
		} else {
			next.Versions[i] = asUnloaded(version)
		}
	}
	return next
}

// IsWithdrawn reports whether a value is one that [Withdrawn] made.
func IsWithdrawn(v *nereidv1.ModelValue) bool {
	return slices.ContainsFunc(v.GetVersions(), unloaded) && !slices.ContainsFunc(v.GetVersions(), placeable) &&
		slices.ContainsFunc(v.GetVersions(), func(v *nereidv1.ModelVersion) bool { return v.GetProblem() != "" })
}

// Removed is the value of a model that no repository has any more.
func Removed(v *nereidv1.ModelValue) *nereidv1.ModelValue {
	next := Unloaded(v)
	next.Unloaded, next.Removed, next.ClassLabels = false, true, nil
	return next
}

// Unloaded is the value of a model that was taken out of service.
func Unloaded(v *nereidv1.ModelValue) *nereidv1.ModelValue {
	next := proto.CloneOf(v)
	if serving := next.GetPrevious(); serving != nil { // which is what the workers hold
		next.Config, next.Url, next.Versions, next.Previous = serving.GetConfig(), serving.GetUrl(), serving.GetVersions(), nil
		next.ClassLabels = serving.GetClassLabels()
	}
	next.Failure, next.Problem, next.Unloaded = "", "", true
	next.LoadFailed = false
	for i, version := range next.GetVersions() {
		next.Versions[i] = asUnloaded(version)
	}
	return next
}

func byNumber(a, b *nereidv1.ModelVersion) int { return int(a.GetVersion() - b.GetVersion()) }

// WithFailure is the value with the cause why a newer generation does not serve.
func WithFailure(old *nereidv1.ModelValue, cause string) *nereidv1.ModelValue {
	next := proto.CloneOf(old)
	next.Failure = cause
	return next
}

// target is the value of a model as it was found, as if nothing served.
func target(m catalog.Model, old *nereidv1.ModelValue, generation uint64, o Observed) *nereidv1.ModelValue {
	v := &nereidv1.ModelValue{
		Schema: nereidv1.Schema, Namespace: m.Namespace, Name: m.Name, Config: m.Config, Url: m.URL,
		Problem: m.Problem, Labels: old.GetLabels(), Overridden: m.Overridden, ReplacedConfig: m.ReplacedConfig, ClassLabels: classLabels(m.Labels),
		LoadFailed: m.LoadFailed(),
	}
	for _, found := range m.Versions {
		next := &nereidv1.ModelVersion{
			Version: found.Number, Generation: generation, Digest: found.Digest, Fingerprint: found.Fingerprint, Url: found.URL, Bytes: found.Bytes,
			Desired: nereidv1.DesiredState_DESIRED_STATE_SERVE, Problem: found.Problem,
		}
		if was := unchanged(m.Config, next, old); was != nil && !o.again(m.ID(), was) {
			next.Generation, next.Fingerprint = was.GetGeneration(), was.GetFingerprint() // for which alone nothing is written
			if placeable(next) {
				next.Problem = was.GetProblem() // the placement's, which [MarkUnplaced] keeps
			}
		}
		v.Versions = append(v.Versions, next)
	}
	return v
}

func classLabels(labels map[string][]byte) map[string]*nereidv1.ClassLabels {
	if len(labels) == 0 {
		return nil
	}
	values := make(map[string]*nereidv1.ClassLabels, len(labels))
	for output, packed := range labels {
		values[output] = &nereidv1.ClassLabels{Gzip: packed}
	}
	return values
}

// unchanged finds the version of the same generation under a value.
func unchanged(config *inference.ModelConfig, v *nereidv1.ModelVersion, old *nereidv1.ModelValue) *nereidv1.ModelVersion {
	for _, content := range []*nereidv1.ModelContent{
		{Config: old.GetConfig(), Versions: old.GetVersions()}, old.GetPrevious(),
	} {
		was := find(content.GetVersions(), v.GetVersion())
		alike := was.GetDigest() == v.GetDigest() && was.GetDesired() == v.GetDesired() && was.GetGeneration() > 0
		if alike && sameLoad(content.GetConfig(), config) {
			return was
		}
	}
	return nil
}

// sameLoad reports whether two configurations differ at most in the counts
// of instance groups, in the version policy and in where they are placed, for
// none of which anything is loaded anew. All else of a group, such as its host policy, says how a
// model is loaded or scheduled.
func sameLoad(a, b *inference.ModelConfig) bool {
	if a == nil || b == nil {
		return a == b
	}
	return proto.Equal(uncounted(a), uncounted(b))
}

func uncounted(c *inference.ModelConfig) *inference.ModelConfig {
	c = proto.CloneOf(c)
	c.VersionPolicy = nil
	maps.DeleteFunc(c.Parameters, func(name string, _ *inference.ModelParameter) bool { return modelconfig.IsPlacement(name) })
	if len(c.Parameters) == 0 {
		c.Parameters = nil
	}
	for _, group := range c.GetInstanceGroup() {
		group.Count = 0
	}
	return c
}

// sameCounts reports whether groups of two configurations have the same
// numbers of instances.
func sameCounts(a, b *inference.ModelConfig) bool {
	return slices.EqualFunc(a.GetInstanceGroup(), b.GetInstanceGroup(), func(a, b *inference.ModelInstanceGroup) bool {
		return a.GetCount() == b.GetCount()
	})
}

// within reports whether all versions that can be served do already. One that has no place
// yet cannot: what serves goes on until it has one, or is given up.
func within(v *nereidv1.ModelValue, serving *nereidv1.ModelContent) bool {
	return !slices.ContainsFunc(v.GetVersions(), func(version *nereidv1.ModelVersion) bool {
		was := find(serving.GetVersions(), version.GetVersion())
		return placeable(version) && was.GetGeneration() != version.GetGeneration()
	}) && slices.ContainsFunc(v.GetVersions(), placeable)
}

// newProblem is the first problem of a version that the value old does not
// show.
func newProblem(v, old *nereidv1.ModelValue) string {
	for _, version := range v.GetVersions() {
		was := find(old.GetVersions(), version.GetVersion())
		if version.GetProblem() != "" && was.GetProblem() != version.GetProblem() {
			return version.GetProblem()
		}
	}
	return ""
}
