package link

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/plane/codec"
)

const (
	// patience is how long a peer may be silent.
	patience = 5 * time.Second
	// beat is how often a side that has nothing to send shows that it is alive.
	beat = time.Second
	// maxWaiting limits, in bytes, what waits for a peer that accepts nothing: the envelope that is being filled and
	// the one that gRPC has yet to accept. (gRPC may hold one more that it has accepted.) Credits keep a peer that
	// does accept data far below the limit.
	maxWaiting = 256 << 20
)

// Causes of a link's end that this side detects.
var (
	// ErrClosed says that this side closed the link.
	ErrClosed = errs.New(errs.PeerUnreachable, "the stream was closed")
	errSilent = errs.New(errs.PeerUnreachable, "the peer has been silent for %v", patience)
	errSlow   = errs.New(errs.PeerUnreachable, "the peer has left %d MiB waiting", maxWaiting>>20)
)

// Conn is either end of a gRPC stream.
type Conn interface {
	SendMsg(any) error
	RecvMsg(any) error
}

// Link is one end of a stream of envelopes. It is safe for concurrent use.
type Link struct {
	conn  Conn          // until Run
	ready chan struct{} // of capacity one: the envelope is not empty
	stop  chan struct{} // closed by the first Close
	done  chan struct{} // closed at the end of Run
	over  sync.Once
	cause error // written before stop is closed

	mu      sync.Mutex
	out     *codec.Writer // the envelope that is being filled; guarded by mu
	sending int           // bytes of the envelope that is being sent; guarded by mu
	woken   bool          // the writer knows of the envelope; guarded by mu
	closed  bool          // guarded by mu

	sent, heard atomic.Bool // since the last beat

	receiving sync.Mutex // held while an envelope is delivered
	ended     bool       // nothing is delivered any more; guarded by receiving
}

// New returns a link over a stream whose hellos have been exchanged.
func New(conn Conn) *Link {
	return &Link{
		conn: conn, out: codec.NewWriter(new(codec.Spares)),
		ready: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
}

// Write adds a message to the next envelope, and returns the error of write. It blocks only for other writers. After
// the link's end it fails with [ErrClosed]; messages written before the end may still be lost.
func (l *Link) Write(write func(*codec.Writer) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.put(write); err != nil {
		return err
	}
	if !l.woken {
		l.woken = true
		l.wake()
	}
	return nil
}

// WriteLater is Write for messages that can wait: the message travels with the next one, or within a heartbeat's
// time. Sending it alone would wake two goroutines on each side.
func (l *Link) WriteLater(write func(*codec.Writer) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.put(write)
}

// put puts a message into the envelope. The caller holds mu.
func (l *Link) put(write func(*codec.Writer) error) error {
	if l.closed {
		return ErrClosed
	}
	if l.out.Len()+l.sending > maxWaiting {
		l.Close(errSlow)
		return ErrClosed
	}
	return write(l.out)
}

// wake tells the writer that there is something to send.
func (l *Link) wake() {
	select {
	case l.ready <- struct{}{}:
	default:
	}
}

// Close ends the link with the given cause. It does not wait.
func (l *Link) Close(cause error) {
	l.over.Do(func() {
		l.cause = cause
		close(l.stop)
	})
}

// Done is closed when the link has ended and delivers nothing any more.
func (l *Link) Done() <-chan struct{} { return l.done }

// Err returns the cause of the end, an *errs.Error; valid after Done.
func (l *Link) Err() error { return l.cause }

// Run moves messages until either side ends, ctx is done or receive fails, and returns the cause. It passes each
// envelope to receive, which must not retain it and is not called after Run has returned. The caller then ends the
// gRPC stream, which ends the remaining goroutines.
func (l *Link) Run(ctx context.Context, receive func(mem.BufferSlice) error) error {
	conn := l.conn
	l.conn = nil // otherwise the link would keep alive what gRPC forgets at the end
	go l.read(conn, receive)
	go l.write(conn)
	l.watch(ctx)
	l.receiving.Lock()
	l.ended = true
	l.receiving.Unlock()
	l.mu.Lock()
	l.closed = true
	l.out.Drop()
	l.mu.Unlock()
	close(l.done)
	return l.cause
}

// watch waits for the end, and causes it when the peer falls silent. It counts beats instead of time, so that a
// process that was stopped for a while does not mistake that for the peer's silence.
func (l *Link) watch(ctx context.Context) {
	beats := time.NewTicker(beat)
	defer beats.Stop()
	silent := time.Duration(0)
	for {
		select {
		case <-l.stop:
			return
		case <-ctx.Done():
			l.Close(Cause(context.Cause(ctx)))
		case <-beats.C:
			if !l.sent.Swap(false) || l.waiting() {
				l.wake() // for an empty envelope, or for what WriteLater has written
			}
			if silent += beat; l.heard.Swap(false) {
				silent = 0
			}
			if silent >= patience {
				l.Close(errSilent)
			}
		}
	}
}

// write sends what has accumulated while the previous envelope was being written.
func (l *Link) write(conn Conn) {
	for {
		select {
		case <-l.ready:
		case <-l.done:
			return
		}
		envelope := l.take()
		l.sent.Store(true)
		if err := conn.SendMsg(envelope); err != nil {
			return // the reader learns why: writing fails only because the stream is over
		}
		l.gone()
	}
}

func (l *Link) take() mem.BufferSlice {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.woken, l.sending = false, l.out.Len()
	return l.out.Take()
}

func (l *Link) waiting() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Len() > 0
}

func (l *Link) gone() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sending = 0
}

func (l *Link) read(conn Conn, receive func(mem.BufferSlice) error) {
	var envelope mem.BufferSlice
	for {
		err := conn.RecvMsg(&envelope)
		if err == nil {
			l.heard.Store(true)
			err = l.deliver(envelope, receive)
			envelope.Free()
		}
		if err != nil {
			l.Close(Cause(err))
			return
		}
	}
}

func (l *Link) deliver(envelope mem.BufferSlice, receive func(mem.BufferSlice) error) error {
	l.receiving.Lock()
	defer l.receiving.Unlock()
	if l.ended {
		return ErrClosed
	}
	return receive(envelope)
}
