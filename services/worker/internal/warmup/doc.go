// Package warmup runs a model's warm-up samples on an instance, so that its
// first request finds memory allocated, kernels chosen and caches filled.
//
// A sample of batch size N is one execution of N requests of one row each,
// repeated as often as its count says. The instance is not open yet: the
// executions reach no scheduler, no client and no statistics. If any sample fails,
// the instance must not become ready.
package warmup
