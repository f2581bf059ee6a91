package rest

import (
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
)

// defaultStallTimeout bounds the time without progress.
const defaultStallTimeout = time.Minute

// leastRate is the least rate of a body, in bytes per second, over its whole time:
// single bytes now and then must not hold memory for ever. Beyond the first piece
// of memory it is leastLargeRate.
const (
	leastRate      = 1 << 10
	leastLargeRate = 64 << 10
)

// maxDiscard bounds the bytes of a refused request's body that are read and
// discarded. Most clients read the response only after they have sent everything,
// and would see a broken connection instead.
const maxDiscard = 256 << 20

// slowBody is the body of a request: it bounds the time in which it arrives, has
// its bytes charged to the call, and discards what a refused request leaves
// unread.
type slowBody struct {
	io.ReadCloser
	call       *call // nil for a request without a body
	connection http.ResponseController
	began      time.Time
	size       int64 // -1 if it is not known
	received   int64
	complete   bool // or broken: no more bytes arrive
	deadline   time.Time
	uncharged  bool // the rest is discarded
}

// begin puts b in the place of the request's body.
func (b *slowBody) begin(c *call) {
	r := c.http
	if r.ContentLength == 0 {
		return
	}
	*b = slowBody{
		ReadCloser: r.Body, call: c, connection: *http.NewResponseController(c.writer), began: time.Now(), size: r.ContentLength,
	}
	b.extend(b.began)
	r.Body = b
}

// end reads what was left unread, which is not charged any more.
func (b *slowBody) end() {
	b.uncharged = true
	if b.call != nil && b.call.http.Header.Get("Expect") == "" { // else the client waits to be asked for it
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
		// From here on net/http reads to see whether the client goes away.
		b.setDeadline(time.Time{})
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = errs.Wrap(errs.BodyStalled, err, "the request's body came too slowly: of it %d bytes came in %v",
			b.received, time.Since(b.began).Round(time.Second))
	case err == nil:
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

// extend moves the deadline with the progress, if that makes a difference.
func (b *slowBody) extend(now time.Time) {
	timeout := b.call.options.StallTimeout
	small := min(b.received, firstPiece)
	atLeastRate := time.Duration(small)*(time.Second/leastRate) + time.Duration(b.received-small)*(time.Second/leastLargeRate)
	deadline := b.began.Add(timeout + atLeastRate)
	if d := now.Add(timeout); d.Before(deadline) {
		deadline = d
	}
	if deadline.Sub(b.deadline) > timeout/16 {
		b.setDeadline(deadline)
	}
}

// setDeadline does nothing where there is no connection, as in tests.
func (b *slowBody) setDeadline(t time.Time) {
	b.deadline = t
	_ = b.connection.SetReadDeadline(t)
}

// stalled counts a response whose client takes too little of it.
func (s *server) stalled() { _ = s.path.Visible("", errs.New(errs.ResponseStalled, "")) }

// maxWrite is how many bytes of a response are written under one deadline.
const maxWrite = 1 << 20

// maxBuffered is how many bytes of a response net/http buffers until the handler
// returns: writing them does not block.
const maxBuffered = 2 << 10

// writeAll sends the parts of a response, size bytes in all. It stops when the
// client is gone or stalls: there is nobody to send an error to.
func (c *call) writeAll(w http.ResponseWriter, size int, parts [][]byte) {
	if size <= maxBuffered {
		for _, part := range parts {
			_, _ = w.Write(part)
		}
		return
	}
	connection := http.NewResponseController(w)
	for _, part := range parts {
		for chunk := range slices.Chunk(part, maxWrite) {
			_ = connection.SetWriteDeadline(time.Now().Add(c.options.StallTimeout))
			if _, err := w.Write(chunk); err != nil {
				if errors.Is(err, os.ErrDeadlineExceeded) {
					c.stalled()
				}
				return
			}
		}
	}
	// The next response on the connection has its own deadline.
	_ = connection.SetWriteDeadline(time.Time{})
}
