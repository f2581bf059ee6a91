// Package rollout judges how far the workers have come with what a model's value
// asks for. It is pure.
//
// A model's versions change together: the new ones serve when each of them is
// ready, with the instances that it should have, on each worker that it is
// assigned to, and one failure is enough for the old ones to stay.
package rollout

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/state"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Progress is how far a model's versions have come, as a whole.
type Progress uint8

// The kinds of progress.
const (
	Pending Progress = iota
	Ready
	Failed
)

// Report is what one worker reports of a loaded version.
type Report struct {
	State nereidv1.State
	Cause string
	// Reason is the cause's; empty where there is none.
	Reason errs.Reason
}

func reportOf(v *nereidv1.WorkerVersion) Report {
	return Report{State: v.GetState(), Cause: v.GetCause(), Reason: errs.Reason(v.GetReason())}
}

// assignedReport is what a worker reports of a loaded version that should have the instances
// of groups: one that is ready loads while it has others, and has failed if it
// cannot have these.
func assignedReport(v *nereidv1.WorkerVersion, groups []*nereidv1.AssignedGroup) Report {
	r := reportOf(v)
	if r.State != nereidv1.State_STATE_READY {
		return r
	}
	same := func(a, b *nereidv1.AssignedGroup) bool { return proto.Equal(a, b) }
	switch {
	case !slices.EqualFunc(v.GetGroups(), groups, same):
		r.State = nereidv1.State_STATE_LOADING
	case r.Cause != "":
		r.State = nereidv1.State_STATE_UNAVAILABLE
	}
	return r
}

// Workers are what the live workers report of one model.
type Workers struct {
	// Assigned lists, by loaded version, what each worker reports that should run it: the
	// zero Report if nothing yet.
	Assigned map[infer.ModelRef][]Report
	// Reported lists what any worker reports of a loaded version that it has.
	Reported map[infer.ModelRef][]Report
}

// NewWorkers knows of no worker.
func NewWorkers() Workers {
	return Workers{Assigned: make(map[infer.ModelRef][]Report), Reported: make(map[infer.ModelRef][]Report)}
}

// Add joins what a live worker should run and what it reports. Either may be nil.
func (w Workers) Add(should *nereidv1.AssignmentValue, says *nereidv1.InstancesValue) {
	reported := make(map[infer.ModelRef]*nereidv1.WorkerVersion)
	for _, v := range says.GetVersions() {
		ref := state.RefOf(v.GetModel())
		reported[ref] = v
		w.Reported[ref] = append(w.Reported[ref], reportOf(v))
	}
	for _, v := range should.GetVersions() {
		ref := state.RefOf(v.GetModel())
		w.Assigned[ref] = append(w.Assigned[ref], assignedReport(reported[ref], v.GetGroups()))
	}
}

// Failed reports whether some worker could not load a version and no other has it, or tries:
// one that is assigned it and has not reported yet is about to.
func (w Workers) Failed(ref infer.ModelRef) bool {
	reports := w.Reported[ref]
	tries := func(r Report) bool { return r.State == nereidv1.State_STATE_UNSPECIFIED }
	return len(reports) > 0 && !slices.ContainsFunc(w.Assigned[ref], tries) && !slices.ContainsFunc(reports, func(r Report) bool {
		return r.State != nereidv1.State_STATE_UNAVAILABLE
	})
}

// Stale reports whether a version has failed for no fault of its own, as [Workers.Passing] has it.
func (w Workers) Stale(ref infer.ModelRef) bool { return w.Failed(ref) && mayPass(w.Reported[ref]) }

// FilesChanged reports whether a version has failed since some worker found other files than
// those that were read.
func (w Workers) FilesChanged(ref infer.ModelRef) bool {
	return w.Failed(ref) && slices.ContainsFunc(w.Reported[ref], Report.filesChanged)
}

// Passing reports whether the versions of v that failed may be loaded another time, although
// their content stays as it is: each failed for want of a place, or of what a worker or an
// object store lacked. A worker that found other files than those that were read saw no content, so that
// the failures of others beside it say nothing either.
func (w Workers) Passing(v *nereidv1.ModelValue) bool {
	var failed []Report
	id := infer.ModelID{Namespace: v.GetNamespace(), Name: v.GetName()}
	for _, version := range v.GetVersions() {
		if version.GetDesired() != nereidv1.DesiredState_DESIRED_STATE_SERVE {
			continue
		}
		if version.GetProblem() != "" && version.GetDigest() == "" {
			return false // its files could not be read
		}
		failed = append(failed, w.Assigned[id.Version(version.GetVersion(), version.GetGeneration())]...)
	}
	return mayPass(failed)
}

// mayPass reports whether the failures among reports say nothing of the content.
func mayPass(reports []Report) bool {
	return slices.ContainsFunc(reports, Report.filesChanged) || !slices.ContainsFunc(reports, Report.badContent)
}

func (r Report) filesChanged() bool {
	return r.State == nereidv1.State_STATE_UNAVAILABLE && r.Reason == errs.FilesChanged
}

// badContent reports a failure that is not known to lie with a worker, its device or an object store.
func (r Report) badContent() bool {
	switch r.Reason {
	case errs.FilesChanged, errs.CacheFull, errs.DeviceMemory, errs.DeviceFailed,
		errs.StoreDenied, errs.StoreNotFound, errs.StoreUnreachable, errs.StoreTruncated, errs.StoreThrottled:
		return false
	}
	return r.State == nereidv1.State_STATE_UNAVAILABLE
}

// Evaluate returns how far the versions of v have come that are to serve, and the
// causes of those that failed, by number. While a version is on its way the
// failure of another decides nothing, so that all causes are shown at once. Those of
// an ensemble are on no worker, and ready.
func (w Workers) Evaluate(v *nereidv1.ModelValue) (Progress, map[int64]string) {
	causes := make(map[int64]string)
	progress := Ready
	id := infer.ModelID{Namespace: v.GetNamespace(), Name: v.GetName()}
	for _, version := range v.GetVersions() {
		if version.GetDesired() != nereidv1.DesiredState_DESIRED_STATE_SERVE {
			continue
		}
		p, cause := Ready, ""
		switch {
		case version.GetProblem() != "":
			p, cause = Failed, version.GetProblem()
		case v.GetConfig().GetEnsembleScheduling() == nil:
			p, cause = w.evaluate(id.Version(version.GetVersion(), version.GetGeneration()))
		}
		if p == Failed {
			causes[version.GetVersion()] = cause
		}
		if p == Pending {
			progress = Pending
		}
	}
	if progress == Ready && len(causes) > 0 {
		progress = Failed
	}
	return progress, causes
}

func (w Workers) evaluate(ref infer.ModelRef) (Progress, string) {
	progress, cause := Ready, ""
	if len(w.Assigned[ref]) == 0 {
		return Pending, ""
	}
	for _, r := range w.Assigned[ref] {
		switch r.State {
		case nereidv1.State_STATE_READY:
		case nereidv1.State_STATE_UNAVAILABLE:
			cause = cmp.Or(cause, r.Cause, "the worker states no cause")
		default:
			progress = Pending
		}
	}
	if progress == Ready && cause != "" {
		return Failed, cause
	}
	return progress, ""
}

// Failure words the causes of a load that failed.
func Failure(model infer.ModelID, causes map[int64]string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "load failed for model '%s':", model)
	for _, version := range slices.Sorted(maps.Keys(causes)) {
		fmt.Fprintf(&text, " version %d is at UNAVAILABLE state: %s;", version, causes[version])
	}
	return text.String()
}
