package state

import nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"

// Away returns why the first is away of the instances of a version that is ready on a
// worker, and whether all of them are; empty is that none is.
func Away(v *nereidv1.WorkerVersion) (cause string, all bool) {
	if v.GetState() != nereidv1.State_STATE_READY {
		return "", false
	}
	all = true
	for _, in := range v.GetInstances() {
		switch {
		case in.GetState() != nereidv1.State_STATE_UNAVAILABLE:
			all = false
		case cause == "":
			cause = in.GetCause()
		}
	}
	return cause, all && cause != ""
}
