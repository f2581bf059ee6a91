package instance

import "sync"

// A request whose client has not read so many responses, or responses of so many
// bytes, has no room for more. They are more than a gateway in another process
// acknowledges at once.
const (
	windowResponses = 128
	windowBytes     = 4 << 20
)

// window holds back the sender of one request's responses while their client does
// not read. It is safe for concurrent use.
type window struct {
	mu        sync.Mutex
	responses int           // given and not released; guarded by mu
	bytes     int64         // of these; guarded by mu
	lifted    bool          // nobody waits for the responses; guarded by mu
	room      chan struct{} // closed while there is room; guarded by mu
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

// add counts a response of n bytes until the function that it returns is called.
func (w *window) add(n int64) (release func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.responses, w.bytes = w.responses+1, w.bytes+n
	if full := w.responses >= windowResponses || w.bytes >= windowBytes; full && !w.lifted && w.openLocked() {
		w.room = make(chan struct{})
	}
	return func() { w.release(n) }
}

// release takes a response out. A full window has room again when it is half
// empty, so that its sender goes on with several.
func (w *window) release(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.responses, w.bytes = w.responses-1, w.bytes-n
	if w.responses <= windowResponses/2 && w.bytes <= windowBytes/2 && !w.openLocked() {
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
