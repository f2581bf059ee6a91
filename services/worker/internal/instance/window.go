package instance

import "sync"

// A request whose client has not read so many responses, or responses of so many
// bytes, has no room for more, whether the client's gateway is in this process or
// another.
const (
	windowResponses = 128
	windowBytes     = 4 << 20
)

// window holds back the sender of one request's responses while their client does
// not read. It is safe for concurrent use.
type window struct {
	mu     sync.Mutex
	unread amount        // given and not released; guarded by mu
	since  amount        // of these, after the last whose release is told; guarded by mu
	lifted bool          // nobody waits for the responses; guarded by mu
	room   chan struct{} // closed while there is room; guarded by mu
}

// amount is so many responses and their bytes.
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

// wait returns a channel that is closed when there is room.
func (w *window) wait() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.room
}

// add counts a response of n bytes. At half a window it returns what is to be called
// when the response is released: those before it are by then. So a request of few
// responses tells nobody, in whatever process its client is read for.
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

// release takes responses out. A full window has room again when it is half
// empty, so that its sender goes on with several: it is when all are released that
// are told, since those after the last are less than half.
func (w *window) release(part amount) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unread.add(part, -1)
	if w.unread.responses <= windowResponses/2 && w.unread.bytes <= windowBytes/2 && !w.openLocked() {
		close(w.room)
	}
}

// lift ends the bound for good: the request has been canceled or has ended.
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
