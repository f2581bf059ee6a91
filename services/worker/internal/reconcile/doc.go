// Package reconcile brings what a worker runs to what it should run.
//
// [Desired] is what the control plane asks for, [plan] the pure decision what
// to do about it, and [Reconciler] the driver: one goroutine that owns all
// state, and a bounded number of others that load and unload.
//
// # Rules
//
// A version (name, version, generation) is loaded once. If that fails it
// stays unavailable with its cause until it is assigned no more: a new
// generation is what tries again. A new generation is loaded while the old
// one serves; the old one is retired when the new one has been ready for a
// while, and serves on if the new one fails. No failure touches another
// version.
package reconcile
