// Package core is the gateway without its protocols: the snapshot of the models, the checks of a request
// against its model, the execution of requests and ensembles, and the calls that the front ends translate to
// HTTP and gRPC. It depends on no protocol and not on NATS.
package core
