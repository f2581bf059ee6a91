// Package region shares memory of GPUs between a client's process and the worker of the GPU:
// both ends of RegionService.
//
// A gateway has a stream for each region that a client has registered, and copies tensors by
// it: the worker maps the region when the stream begins, and unmaps it when the stream ends,
// whatever ends it. So no mapping outlives its gateway, and none is mistaken for that of
// another worker process.
package region
