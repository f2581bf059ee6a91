package link

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/plane/codec"
)

// Protocol is the number of the protocol that this release speaks.
const Protocol = 2

// SendHello sends the first message of a side, in an envelope of its own. If the other side has already ended the
// stream, it returns no error: the first read says why.
func SendHello(conn Conn, m proto.Message) error {
	w := codec.NewWriter(new(codec.Spares))
	if err := w.Whole(m); err != nil {
		return err
	}
	err := conn.SendMsg(w.Take())
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// ReceiveHello waits for the other side's first message, which must be the hello, in an envelope of its own.
func ReceiveHello(conn Conn, hello proto.Message) error {
	var envelope mem.BufferSlice
	if err := conn.RecvMsg(&envelope); err != nil {
		return err
	}
	defer envelope.Free()
	r, seen := codec.NewReader(nil), 0
	err := r.Each(envelope, func(member protowire.Number, b codec.Body) error {
		if seen++; member != codec.Hello {
			seen++
		}
		return r.Message(b, hello)
	})
	if err == nil && seen != 1 {
		err = errs.New(errs.PeerMalformed, "the peer did not begin its stream with a hello alone")
	}
	return err
}

// helloTimeout is how long a server waits for a hello: a client sends it when it opens the stream.
const helloTimeout = 10 * time.Second

// ExpectHello is [ReceiveHello] for a server's end. If it fails, the caller ends the stream. The error is an
// *errs.Error, also if nothing arrives or ctx is done.
func ExpectHello(ctx context.Context, conn Conn, hello proto.Message) error {
	ctx, cancel := context.WithTimeoutCause(ctx, helloTimeout, errs.New(errs.PeerUnreachable, "the peer has sent no hello for %v", helloTimeout))
	defer cancel()
	came := make(chan error, 1)
	go func() { came <- ReceiveHello(conn, hello) }() // ends with the stream
	select {
	case err := <-came:
		return Cause(err)
	case <-ctx.Done():
		return Cause(context.Cause(ctx))
	}
}

// CheckProtocol refuses a peer whose highest protocol this release no longer speaks.
func CheckProtocol(peer string, protocol uint32) error {
	if protocol >= Protocol {
		return nil
	}
	return errs.New(errs.PeerProtocol, "%s speaks protocol %d, this release %d: upgrade the older one", peer, protocol, Protocol)
}
