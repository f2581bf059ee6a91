// Package warmup runs a model's warm-up samples on an instance, so that its
// first request finds memory allocated, kernels chosen and caches filled.
//
// A sample of batch size N is one execution of N requests of one row each, as
// often as its count says. The instance is not open yet: the executions reach
// no scheduler, no client and no statistics. The first error of any sample is
// the instance's: it must not become ready.
package warmup
