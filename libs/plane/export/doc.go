// Package export carries tensors and responses between gateways and workers:
// both ends of TensorService.
//
// A gateway dials every worker and keeps one [Session] with each. Workers send
// it responses; each is kept until the gateway says that it was taken, and goes
// on the next stream if one breaks, so that none is lost or comes twice.
//
// Inputs that are too large for a request's descriptor are named there, and
// lent by the gateway's [Exports]. [Worker.Fetch] makes them readable before their
// batch reaches an instance.
package export
