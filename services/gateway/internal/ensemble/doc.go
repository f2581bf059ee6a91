// Package ensemble is an ensemble's graph, and the state of one request that runs
// through it. It is pure: it says which steps are to be executed with what, is told
// their responses, and gives the ensemble's own. Who executes steps is elsewhere.
//
// # Iterations
//
// A step runs once, when all of its inputs are there. Each response of a decoupled
// step is an iteration: what depends on it runs once for each, in any order, and with
// what does not depend on it. Iterations are numbered as the responses come, and
// outputs of one iteration make one response of the ensemble.
//
// # What is kept
//
// Tensors pass by reference. A response of a step is kept as long as a step that
// reads it runs, or the ensemble's own response does that names it: so its credit comes
// back late, and a decoupled step waits for those behind it.
package ensemble
