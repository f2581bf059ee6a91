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

// progress is how many bytes of a body come within the timeout, or else the rest: single
// bytes now and then must not hold memory for ever.
const progress = 64 << 10

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
	progressed int64 // of these at the last progress
	complete   bool  // or broken: no more bytes arrive
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
	b.setDeadline(b.began.Add(c.options.StallTimeout))
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

// extend moves the deadline with the progress, if that makes a difference.
func (b *slowBody) extend(now time.Time) {
	timeout := b.call.options.StallTimeout
	if deadline := now.Add(timeout); deadline.Sub(b.deadline) > timeout/16 {
		b.setDeadline(deadline)
	}
}

// setDeadline does nothing where there is no connection, as in tests.
func (b *slowBody) setDeadline(t time.Time) {
	b.deadline = t
	_ = b.connection.SetReadDeadline(t)
}

// stalled counts a response that its client does not read.
func (s *server) stalled() { _ = s.path.Visible("", errs.New(errs.ResponseStalled, "")) }

// writeAll sends the parts of a response. It stops when the client is gone or stalls, which the
// connection sees: there is nobody to send an error to.
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
