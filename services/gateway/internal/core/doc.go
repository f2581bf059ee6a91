// Package core is the gateway without its protocols: the snapshot of the
// models, the checks of a request against its model, the pending table that
// gives every request its one answer, and the calls that the front ends turn
// into HTTP and gRPC. It knows neither protocol nor NATS.
package core
