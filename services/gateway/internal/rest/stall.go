package rest

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
)

// defaultStallTimeout bounds the time without progress.
const defaultStallTimeout = time.Minute

// progress is how many bytes of a body must arrive within the timeout, unless the rest is smaller: a trickle of
// single bytes must not hold memory forever.
const progress = 64 << 10

// maxDiscard bounds how many bytes of a refused request's body are read and discarded. Most clients read the
// response only after they have sent everything, and would otherwise see a broken connection.
const maxDiscard = 256 << 20

// slowBody is the body of a request. It bounds the time in which the body arrives, charges its bytes to the
// call, and discards what a refused request leaves unread.
type slowBody struct {
	io.ReadCloser
	call       *call // nil for a request without a body
	connection http.ResponseController
	began      time.Time
	size       int64 // -1 if unknown
	received   int64
	progressed int64 // value of received at the last progress
	complete   bool  // or broken: no more bytes will arrive
	deadline   time.Time
	uncharged  bool // the rest is being discarded
}

// begin replaces the request's body by b.
func (b *slowBody) begin(c *call) {
	r := c.http
	if r.ContentLength == 0 {
		return
	}
	*b = slowBody{
		ReadCloser: r.Body, call: c, connection: *http.NewResponseController(c.writer), began: time.Now(), size: r.ContentLength,
	}
	b.setDeadline(b.began.Add(c.options.StallTimeout))
	r.Body = b
}

// end discards the unread rest without charging it.
func (b *slowBody) end() {
	b.uncharged = true
	if b.call != nil && b.call.http.Header.Get("Expect") == "" { // otherwise the client waits until it is asked for the body
		b.discard()
	}
}

// Read implements io.Reader.
func (b *slowBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.received += int64(n)
	b.complete = err != nil || b.received == b.size
	switch {
	case errors.Is(err, io.EOF), b.received == b.size:
		// From here on net/http reads to detect that the client disconnects.
		b.setDeadline(time.Time{})
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = errs.Wrap(errs.BodyStalled, err, "the request's body came too slowly: of it %d bytes came in %v",
			b.received, time.Since(b.began).Round(time.Second))
	case b.received-b.progressed >= progress:
		b.progressed = b.received
		b.extend(time.Now())
	}
	if b.uncharged {
		return n, err
	}
	if full := b.call.Account.Receive(int64(n)); full != nil {
		return 0, full
	}
	return n, err
}

// discard reads the rest of the body, up to maxDiscard bytes.
func (b *slowBody) discard() {
	if !b.complete && b.size-b.received <= maxDiscard {
		_, _ = io.CopyN(io.Discard, b, maxDiscard)
	}
}

// extend moves the deadline after progress, if that makes a difference.
func (b *slowBody) extend(now time.Time) {
	timeout := b.call.options.StallTimeout
	if deadline := now.Add(timeout); deadline.Sub(b.deadline) > timeout/16 {
		b.setDeadline(deadline)
	}
}

// setDeadline has no effect without a connection, as in tests.
func (b *slowBody) setDeadline(t time.Time) {
	b.deadline = t
	_ = b.connection.SetReadDeadline(t)
}

// stalled counts a response that its client did not read.
func (s *server) stalled() { _ = s.path.Visible("", errs.New(errs.ResponseStalled, "")) }

// writeAll writes the parts of a response. It stops when the client disconnects or stalls; the connection then
// fails, and nobody is left to receive an error.
func (c *call) writeAll(w http.ResponseWriter, parts [][]byte) {
	for _, part := range parts {
		if _, err := w.Write(part); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				c.stalled()
			}
			return
		}
	}
}
