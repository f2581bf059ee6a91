// Package wiring holds the ways in which a gateway, a scheduler and a worker may
// be put together against each other: whether they call each other in one
// process or are streams apart, the same happens to a request. The scheduler is
// the service; apart, the gateway's dispatcher and the worker's attachment are
// those of their services too. What runs orders is the test's, so that it
// decides when something runs and ends.
package wiring
