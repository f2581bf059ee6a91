// Package registry records which models exist and decides where they run.
//
// Any number of replicas may run; the one that holds the lease leaders/registry
// acts. At the start of its leadership it scans the model repositories into an
// immutable snapshot and brings the bucket models to hold it. From then on it
// keeps the bucket assignments in step with what models and workers say. The
// buckets are the only way out: no request passes here, and serving goes on
// without a leader.
//
// Every write names the revision that it replaces, so that a deposed leader
// that has not noticed it yet overwrites nothing.
package registry
