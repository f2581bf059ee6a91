// Package export carries tensors and responses between processes: both ends of
// TensorService, which are alike.
//
// Each process has one [Endpoint]. What it holds it lends by its [Exports] until
// the lease is released, and what others hold it reads with [Endpoint.Fetch]: in
// place where the holder's memory is mapped, or by its bytes.
//
// A gateway begins a [Session] with every worker, and a worker with those workers
// from which it fetches. Workers send responses over the sessions of gateways; each
// is kept until the gateway says that it was taken, and goes on the next stream if
// one breaks, so that none is lost or comes twice.
package export
