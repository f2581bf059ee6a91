package perf

import (
	"cmp"
	"context"
	"crypto/tls"
	"time"

	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/errs"
)

// Protocol is how requests reach the server.
type Protocol string

// The protocols.
const (
	HTTP   Protocol = "http"
	GRPC   Protocol = "grpc"
	Stream Protocol = "stream" // of gRPC: any number of responses to a request
)

// Target is the server that is measured.
type Target struct {
	Protocol Protocol
	// Address is a host and port.
	Address string
	// TLS is nil for plain text.
	TLS *tls.Config
	// Timeout is each request's deadline, which is sent to the server; 0 is none.
	Timeout time.Duration
	// Connections are how many connections gRPC uses. Over HTTP each request that is
	// in flight has its own.
	Connections int
}

// sender sends requests. It is safe for concurrent use.
type sender interface {
	// send sends one request and calls respond for each response as it comes.
	// An error is the server's, or that of the connection.
	send(ctx context.Context, c *call, respond func()) error
	// Close ends all connections, and the requests on them.
	Close() error
}

// call is one request with what identifies it.
type call struct {
	class   int
	payload *payload
	step    *sequenceStep // nil without a sequence
	// slot is the sequence's place among those that are active.
	slot *slot

	// Of a replay: deadline is the request's own, 0 for none, and turn its place in its
	// sequence, which may be nil.
	deadline time.Duration
	turn     *turn
	// keep has the sender keep the responses, which judge gets at the end of a request that has
	// not failed.
	keep  bool
	kept  []*client.Response
	judge func([]*client.Response)
}

// within is how long the request may take; 0 is for ever.
func (c *call) within(t *Target) time.Duration { return cmp.Or(c.deadline, t.Timeout) }

// feed hands out the requests of a run. It is safe for concurrent use.
type feed interface {
	// take returns the next request: of a client of a closed loop, or of an open loop where the
	// client is negative.
	take(client int) *call
}

// dial returns the sender of a target. It opens connections as they are needed.
func dial(t *Target, classes []Class) (sender, error) {
	switch t.Protocol {
	case HTTP:
		return newHTTPSender(t), nil
	case GRPC, Stream:
		return newGRPCSender(t, classes)
	}
	return nil, errs.New(errs.ConfigInvalid, "the protocol %q is unknown: want http, grpc or stream", t.Protocol)
}

// failure is why a request failed, as reports count it.
type failure struct {
	// kind is the server's reason, its status, or what happened to the connection.
	kind string
	text string
}

// Error implements error.
func (f *failure) Error() string { return f.kind + ": " + f.text }
