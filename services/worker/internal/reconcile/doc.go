// Package reconcile loads and unloads models until the worker runs what it is
// assigned.
//
// [Desired] is the state that the control plane asks for, [plan] the pure decision
// about the next steps, and [Reconciler] the driver: one goroutine that owns all
// state, and a bounded number of others that load and unload.
//
// # Rules
//
// A version (name, version, generation) is loaded once. If that fails it stays
// unavailable with its cause until it is no longer assigned: only a new generation
// is tried again. A new generation loads while the old one serves; the old one is
// retired when the new one has been ready for a while, and keeps serving if the new
// one fails. No failure affects another version.
package reconcile
