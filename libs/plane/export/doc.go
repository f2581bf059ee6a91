// Package export carries tensors and responses between processes: both ends of
// TensorService, which work alike.
//
// Each process has one [Endpoint]. It exports its tensors through [Exports] until
// their lease is released, and reads those of others with [Endpoint.Fetch]: in
// place if the holder's memory is mapped, otherwise by receiving the bytes.
//
// A gateway starts a [Session] with every worker, and a worker with those workers
// from which it fetches. Workers send responses over the sessions of gateways.
// They retain each response until the gateway acknowledges it, and send it on the
// next stream if one breaks, so that no response is lost or duplicated.
package export
