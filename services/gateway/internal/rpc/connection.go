package rpc

import (
	"context"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/tap"

	"github.com/nereid-serving/nereid/libs/serve"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc/transport"
)

// connection is the connection of one client. Its calls see it as the AuthInfo that the handshake returned.
type connection struct {
	*transport.Connection
	order order
}

// handshakes wraps each connection so that it is counted.
type handshakes struct {
	credentials.TransportCredentials
	connections *transport.Connections
}

// ServerHandshake implements credentials.TransportCredentials.
func (h handshakes) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := h.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	c := &connection{Connection: h.connections.Wrap(conn, info, serve.SlotOf(raw))}
	return c, c, nil
}

// Clone implements credentials.TransportCredentials.
func (h handshakes) Clone() credentials.TransportCredentials {
	h.TransportCredentials = h.TransportCredentials.Clone()
	return h
}

// connectionOf returns the connection of a call. It must have been made by handshakes.
func connectionOf(ctx context.Context) *connection {
	p, _ := peer.FromContext(ctx)
	return p.AuthInfo.(*connection)
}

// opened gives a call its context and its ledger, or refuses the call. gRPC calls it where it reads the
// connection, so in the order in which the client opened its calls.
func (s *service) opened(ctx context.Context, info *tap.Info) (context.Context, error) {
	c, t := connectionOf(ctx), &ticket{Context: endEarly(ctx, info)}
	headers := 0
	for name, values := range info.Header {
		headers += headerBytes + len(name)
		for _, v := range values {
			headers += valueBytes + len(v)
		}
	}
	service, method, _ := strings.Cut(strings.TrimPrefix(info.FullMethodName, "/"), "/")
	if err := c.Open(&t.ledger, headers, apiOf(service, method) == core.HealthAPI); err != nil {
		return nil, s.status(info.FullMethodName, err)
	}
	if info.FullMethodName == inference.GRPCInferenceService_ModelInfer_FullMethodName {
		c.order.open(t)
	}
	return t, nil
}

// handlers notifies the ledgers of calls when their handlers start and end. gRPC reports that nowhere else: a
// call that its client has reset may still have a handler.
type handlers struct{}

// HandleRPC implements stats.Handler.
func (handlers) HandleRPC(ctx context.Context, s stats.RPCStats) {
	switch s.(type) {
	case *stats.Begin:
		ticketOf(ctx).ledger.Enter()
	case *stats.End:
		ticketOf(ctx).ledger.Leave()
	}
}

// TagRPC implements stats.Handler.
func (handlers) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn implements stats.Handler.
func (handlers) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (handlers) HandleConn(context.Context, stats.ConnStats) {}

// The memory that a header uses in addition to its texts, in bytes: its entry in a map, and a list of values.
const (
	headerBytes = 64
	valueBytes  = 16
)

// countedStream is a stream of generated code whose messages are charged: the client's until the next one is
// read, and the server's until the client reads them.
type countedStream struct {
	grpc.ServerStream
	service *service
	call    *path.Call
}

// RecvMsg implements grpc.ServerStream.
func (s *countedStream) RecvMsg(m any) error {
	s.call.Account.Open(s.call.Budget())
	in := received{message: m, account: &s.call.Account, ledger: &ticketOf(s.Context()).ledger}
	return in.from(s.Context(), s.ServerStream.RecvMsg, false)
}

// SendMsg implements grpc.ServerStream.
func (s *countedStream) SendMsg(m any) error {
	message, err := s.service.reply(s.Context(), m)
	if err != nil {
		return err
	}
	return s.ServerStream.SendMsg(message)
}
