package instance

import "sync"

// A request whose client has left this many responses, or responses of this many bytes, unread may send no more,
// whether the client's gateway is in this process or another.
const (
	windowResponses = 128
	windowBytes     = 4 << 20
)

// window blocks the sender of one request's responses while the client does not read. It is safe for concurrent use.
type window struct {
	mu     sync.Mutex
	unread amount        // sent and not released; guarded by mu
	since  amount        // of these, after the last whose release is reported; guarded by mu
	lifted bool          // nobody waits for the responses; guarded by mu
	room   chan struct{} // closed while the window is open; guarded by mu
}

// amount is a number of responses and their bytes.
type amount struct {
	responses int
	bytes     int64
}

func (a *amount) add(b amount, sign int) {
	a.responses += sign * b.responses
	a.bytes += int64(sign) * b.bytes
}

func newWindow() *window {
	w := &window{room: make(chan struct{})}
	close(w.room)
	return w
}

// wait returns a channel that is closed while the window is open.
func (w *window) wait() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.room
}

// add counts a response of n bytes. Once per half window it returns a function to call when the response is released:
// by then those before it have been released too. So the release of a request's responses is not reported if there
// are few, in whatever process they are read.
func (w *window) add(n int64) (release func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one := amount{1, n}
	w.unread.add(one, 1)
	w.since.add(one, 1)
	if full := w.unread.responses >= windowResponses || w.unread.bytes >= windowBytes; full && !w.lifted && w.openLocked() {
		w.room = make(chan struct{})
	}
	if w.since.responses < windowResponses/2 && w.since.bytes < windowBytes/2 {
		return nil
	}
	part := w.since
	w.since = amount{}
	return func() { w.release(part) }
}

// release removes responses that were released. A full window opens again when it is half empty, so that its sender
// can continue with several responses. That point is always reached: the responses after the last one whose release
// is reported are less than half a window.
func (w *window) release(part amount) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unread.add(part, -1)
	if w.unread.responses <= windowResponses/2 && w.unread.bytes <= windowBytes/2 && !w.openLocked() {
		close(w.room)
	}
}

// lift removes the limit for good: the request has been canceled or has ended.
func (w *window) lift() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lifted = true
	if !w.openLocked() {
		close(w.room)
	}
}

func (w *window) openLocked() bool {
	select {
	case <-w.room:
		return true
	default:
		return false
	}
}
