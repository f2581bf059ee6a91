// Package ensemble implements an ensemble's graph, and the state of one request that runs through it. It is
// pure: it says which steps to execute with which inputs, receives their responses, and produces the ensemble's
// responses. It does not execute steps.
//
// # Iterations
//
// A step runs once all its inputs are known. Each response of a decoupled step is an iteration: the steps that
// depend on it run once for each iteration, in any order, together with inputs that do not depend on it.
// Iterations are numbered in the order of the responses, and the outputs of one iteration make up one response
// of the ensemble.
//
// A response may lack an output. The output is then absent: the steps that read it run without it, and the
// ensemble's response lacks it.
//
// # Lifetime of tensors
//
// Tensors are passed by reference. The run retains a response of a step for as long as a step that reads it
// runs or the ensemble's response that contains it exists. Its credit is therefore returned late, and a
// decoupled step waits for the steps behind it.
package ensemble
