// Package ensemble is an ensemble's graph, and the state of one request that runs
// through it. It is pure: it says which steps to execute with which inputs, gets their
// responses, and gives the ensemble's own. It executes no step.
//
// # Iterations
//
// A step runs once, when all of its inputs are known. Each response of a decoupled
// step is an iteration: what depends on it runs once for each, in any order, and with
// what does not depend on it. Iterations are numbered as the responses come, and
// outputs of one iteration make one response of the ensemble.
//
// A response may lack an output. That output is absent then: the steps that read it run
// without it, and the ensemble's response lacks it.
//
// # Lifetime of tensors
//
// Tensors pass by reference. The run retains a response of a step as long as a step that
// reads it runs, or the ensemble's own response that names it exists: its credit comes
// back late, and a decoupled step waits for the steps behind it.
package ensemble
