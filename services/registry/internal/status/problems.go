package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// problems lists what is not as it should be, from the roles without a holder
// to the models that are not ready.
func problems(s *View, c *nereidv1.ClusterStatus) []string {
	var list []string
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if _, ok := s.Leaders[Registry]; !ok {
		add("no registry leads: models are neither loaded nor moved")
	}
	for _, pool := range s.Pools() {
		if _, ok := s.Leaders[PoolRole(pool)]; !ok {
			add("no scheduler holds the pool %s: requests for its models wait, and then fail as %s: start a scheduler with --pool=%s, or see whether it reaches NATS", pool, errs.NoScheduler, pool)
		}
	}
	for _, pool := range slices.Sorted(maps.Keys(s.Unreachable)) {
		add("the scheduler of the pool %s does not report its queues: %s", pool, s.Unreachable[pool])
	}
	if len(s.Services[Gateway]) == 0 {
		add("no gateway is there to take requests")
	}
	if len(s.Workers) == 0 {
		add("no worker is there to run models")
	}
	for _, service := range c.GetServices() {
		switch service.GetState() {
		case nereidv1.State_STATE_LOADING:
			if service.GetRole() == Gateway { // by Triton's meaning of a server's readiness
				add("the gateway %s is not ready: it is when all models are", service.GetId())
				continue
			}
			add("the %s %s is not ready", service.GetRole(), service.GetId())
		case nereidv1.State_STATE_UNLOADING:
			add("the %s %s is about to stop", service.GetRole(), service.GetId())
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.Lagging)) {
		add("the service %s is alive and does not apply changes of models: requests that it sends to replaced versions fail with model_not_ready; see its log, or start it again", id)
	}
	for _, w := range c.GetWorkers() {
		if problem := s.Workers[w.GetId()].Value.GetDeviceProblem(); problem != "" {
			add("the device of the worker %s is sick, and its models go to others: %s", w.GetId(), problem)
		}
		if s.Workers[w.GetId()].Value.GetUnsteady() {
			add("the worker %s was started again a moment ago, as start %d: the one before ended with %s", w.GetId(), w.GetRestarts()+1, cmp.Or(w.GetLastExit(), "no word"))
		}
	}
	for _, m := range c.GetModels() {
		list = append(list, s.modelProblems(m)...)
	}
	return list
}

func (s *View) modelProblems(m *nereidv1.ModelStatus) []string {
	name := infer.ModelID{Namespace: m.GetNamespace(), Name: m.GetName()}.String()
	var list []string
	if m.GetProblem() != "" {
		list = append(list, fmt.Sprintf("model %s cannot be served: %s", name, m.GetProblem()))
	}
	if m.GetFailure() != "" {
		list = append(list, fmt.Sprintf("model %s serves an older generation, since the newest failed to load: %s", name, m.GetFailure()))
	}
	for _, v := range m.GetVersions() {
		if cause := s.unready(m, v); cause != "" {
			list = append(list, fmt.Sprintf("model %s version %d %s", name, v.GetVersion(), cause))
		}
	}
	return list
}

// unready returns what is wrong with a version; empty if nothing is, or if it is
// only on its way while another generation serves in its place.
func (s *View) unready(m *nereidv1.ModelStatus, v *nereidv1.VersionStatus) string {
	switch {
	case v.GetDesired() != nereidv1.DesiredState_DESIRED_STATE_SERVE || v.GetPrevious():
		return ""
	case v.GetProblem() != "":
		return "cannot be served: " + v.GetProblem()
	case v.GetEnsemble() != nil && v.GetEnsemble().GetState() != nereidv1.State_STATE_READY:
		return "is not ready: " + v.GetEnsemble().GetCause()
	case v.GetEnsemble() != nil:
		return ""
	}
	ready, cause, waits := false, "", ""
	for _, p := range v.GetWorkers() {
		switch p.GetState() {
		case nereidv1.State_STATE_READY:
			ready = true
			if p.GetCause() != "" {
				cause = cmp.Or(cause, fmt.Sprintf("does not run as assigned on %s: %s", p.GetWorkerId(), p.GetCause()))
			}
		case nereidv1.State_STATE_LOADING:
			if p.GetCause() != "" {
				waits = cmp.Or(waits, fmt.Sprintf(", on %s: %s", p.GetWorkerId(), p.GetCause()))
			}
		case nereidv1.State_STATE_UNAVAILABLE:
			cause = cmp.Or(cause, fmt.Sprintf("failed on %s: %s", p.GetWorkerId(), cmp.Or(p.GetCause(), "it gives no reason")))
		}
	}
	ref := infer.ModelRef{Namespace: m.GetNamespace(), Name: m.GetName(), Version: v.GetVersion(), Generation: v.GetGeneration()}
	switch away := s.Lost[ref]; {
	case cause != "":
		return cause
	case !ready && len(v.GetWorkers()) == 0 && len(away) > 0:
		return fmt.Sprintf("is on no worker: %s, where it was, has not reported for some seconds", strings.Join(away, ", "))
	case !ready && len(v.GetWorkers()) == 0:
		return "is on no worker"
	case !ready && !m.GetChanging():
		return "is not ready yet" + waits
	case s.UnderReplicated[ref] != "":
		return "is not placed as it should be: " + s.UnderReplicated[ref]
	}
	return ""
}
