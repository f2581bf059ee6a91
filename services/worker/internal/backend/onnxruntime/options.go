package onnxruntime

import "github.com/nereid-serving/nereid/libs/tensor"

// Options are what holds for all models of the backend.
type Options struct {
	// Pool gives the memory of batches and outputs. It is required.
	Pool *tensor.Pool
	// IntraOpThreads and InterOpThreads are the threads of each model's
	// session whose configuration does not say: within a node, and across
	// nodes in parallel execution mode. 0 is 1, which suits instances that
	// share cores: two threads per run cost a third more CPU for the same
	// work. Negative leaves the choice to ONNX Runtime.
	IntraOpThreads, InterOpThreads int
	// Spinning lets idle threads of a session spin for their next work. It
	// burns a core between batches, so it is for workers that own their
	// cores.
	Spinning bool
}

// Name returns "onnxruntime".
func (b *Backend) Name() string { return "onnxruntime" }
