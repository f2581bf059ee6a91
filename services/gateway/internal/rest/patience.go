package rest

import (
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// defaultPatience is how long a body may make no progress.
const defaultPatience = time.Minute

// leastRate is how many bytes of a body must come each second after that, so
// that a client which sends one now and then does not hold memory for ever.
const leastRate = 1 << 10

// maxDiscard is how many bytes of a refused request's body are read and thrown
// away. Most clients read the answer only when they have sent everything, and
// would see a broken connection instead of it.
const maxDiscard = 256 << 20

// patient bounds how long a client may take to send its body, counts the body's
// bytes while the request is in flight, and takes what a refused request leaves
// of it before the answer is sent.
func (s *server) patient(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 {
			next.ServeHTTP(w, r)
			return
		}
		b := &slowBody{
			ReadCloser: r.Body, connection: *http.NewResponseController(w),
			began: time.Now(), size: r.ContentLength, patience: s.options.Patience, budget: s.options.Budget,
		}
		b.extend(b.began)
		r.Body = b
		next.ServeHTTP(w, r)
		b.giveBack()
		if r.Header.Get("Expect") == "" { // else the client waits to be asked for it
			b.discard()
		}
	})
}

// slowBody is a body whose connection has a deadline while it is read.
type slowBody struct {
	io.ReadCloser
	connection http.ResponseController
	patience   time.Duration
	began      time.Time
	size       int64 // -1 if it is not known
	received   int64
	over       bool // nothing more will come
	deadline   time.Time
	// budget has the bytes that were received, but for those that are thrown
	// away: nil by then.
	budget *core.Budget
	taken  int64
}

// Read implements io.Reader.
func (b *slowBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.received += int64(n)
	b.over = err != nil || b.received == b.size
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
	if full := b.budget.Take(int64(n)); full != nil {
		return 0, full
	}
	b.taken += int64(n)
	return n, err
}

// giveBack takes the request's bytes out of the budget. What comes of it from
// now on is not kept.
func (b *slowBody) giveBack() {
	b.budget.Give(b.taken)
	b.budget, b.taken = nil, 0
}

// discard takes the rest of the body, unless it is too much.
func (b *slowBody) discard() {
	if !b.over && b.size-b.received <= maxDiscard {
		_, _ = io.CopyN(io.Discard, b, maxDiscard)
	}
}

// extend moves the deadline with the progress, if that makes a difference.
func (b *slowBody) extend(now time.Time) {
	atLeastRate := time.Duration(b.received) * (time.Second / leastRate)
	deadline := b.began.Add(b.patience + atLeastRate)
	if d := now.Add(b.patience); d.Before(deadline) {
		deadline = d
	}
	if deadline.Sub(b.deadline) > b.patience/16 {
		b.setDeadline(deadline)
	}
}

// setDeadline does nothing where there is no connection, as in tests.
func (b *slowBody) setDeadline(t time.Time) {
	b.deadline = t
	_ = b.connection.SetReadDeadline(t)
}

// maxWrite is how many bytes of an answer are written under one deadline.
const maxWrite = 1 << 20

// maxBuffered is how many bytes of an answer net/http keeps until the handler
// has returned: writing no more waits for nobody.
const maxBuffered = 2 << 10

// writeAll sends the parts of an answer, size bytes in all. It stops when the
// client is gone or takes too little within the patience: there is nobody to
// tell.
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
			_ = connection.SetWriteDeadline(time.Now().Add(c.options.Patience))
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}
	// The next answer on the connection has its own time.
	_ = connection.SetWriteDeadline(time.Time{})
}
