package stub

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// What a frame may have, and what may wait.
const (
	headBytes = 12
	// MaxHeader is the most bytes of a header.
	MaxHeader  = 64 << 20
	maxBody    = 1 << 30
	maxRights  = 253 // descriptors, by the kernel
	maxPending = 2 * MaxHeader
	readBytes  = 64 << 10
)

// Connection is the worker's end of the socket to a stub. Send is safe for concurrent
// use and does not block; Receive is called from one goroutine.
type Connection struct {
	file *os.File
	raw  syscall.RawConn
	pool *tensor.Pool

	mu       sync.Mutex
	out      []byte   // frames that are not sent; guarded by mu
	rights   []rights // of out; guarded by mu
	flushing bool     // a goroutine sends what is left; guarded by mu
	failed   error    // guarded by mu

	// Owned by Receive's goroutine.
	in       []byte // what has been read; in[:next] has been given out
	next     int
	received []int // descriptors that no frame has taken yet
	control  []byte
	reading  read
}

// rights are descriptors that go with the frame at a byte of what is sent.
type rights struct {
	at    int
	files []int
}

// read is one call of recvmsg.
type read struct {
	to         []byte
	n, control int
	flags      int
	err        error
	do         func(fd uintptr) bool
}

// NewConnection takes over a socket, which does not block. Bodies are read into
// memory of the pool.
func NewConnection(socket int, pool *tensor.Pool) (*Connection, error) {
	c := &Connection{
		file: os.NewFile(uintptr(socket), "stub"), pool: pool,
		in: make([]byte, 0, readBytes), control: make([]byte, unix.CmsgSpace(maxRights*4)),
	}
	raw, err := c.file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, c.file.Close())
	}
	c.raw = raw
	r := &c.reading
	r.do = func(fd uintptr) bool {
		r.n, r.control, r.flags, _, r.err = unix.Recvmsg(int(fd), r.to, c.control, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		return !errors.Is(r.err, unix.EAGAIN)
	}
	return c, nil
}

// Close ends the connection: Receive returns an error, and Send sends nothing more.
func (c *Connection) Close() error {
	c.fail(broken(errors.New("closed")))
	return c.file.Close()
}

// broken is an error of the socket.
func broken(err error) error { return fmt.Errorf("the connection to the stub: %w", err) }

func (c *Connection) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed == nil {
		c.failed = err
	}
	c.dropLocked()
}

// dropLocked closes descriptors that will not be sent, and forgets the frames.
func (c *Connection) dropLocked() {
	for _, r := range c.rights {
		closeAll(r.files)
	}
	c.out, c.rights = nil, nil
}

func closeAll(files []int) {
	for _, fd := range files {
		_ = unix.Close(fd)
	}
}

// Send sends a frame, now or when the stub reads. Header and body are the caller's
// again; the files, which it takes over, are closed when they are sent. An error
// says that nothing will be sent any more.
func (c *Connection) Send(header, body []byte, files []int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.appendLocked(header, body, files); err != nil || c.flushing {
		return err
	}
	w := write{out: c.out, rights: c.rights}
	if err := w.to(c.raw, false); err != nil {
		c.failed, c.rights = broken(err), w.rights
		c.dropLocked()
		return c.failed
	}
	if len(w.out) == 0 {
		c.out, c.rights = c.out[:0], c.rights[:0]
		return nil
	}
	c.out, c.rights, c.flushing = nil, nil, true
	go c.flush(w)
	return nil
}

// Append is [Connection.Send] for a frame that need not be there before the next.
func (c *Connection) Append(header, body []byte, files []int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.appendLocked(header, body, files)
}

func (c *Connection) appendLocked(header, body []byte, files []int) error {
	if c.failed == nil && len(c.out) > maxPending {
		c.failed = broken(fmt.Errorf("%d bytes wait to be read", len(c.out)))
		c.dropLocked()
	}
	err := c.failed
	if err == nil && (len(header) > MaxHeader || len(body) > maxBody || len(files) > maxRights) {
		err = fmt.Errorf("a message of %d and %d bytes with %d files is more than a stub is sent", len(header), len(body), len(files))
	}
	if err != nil {
		closeAll(files)
		return err
	}
	if len(files) > 0 {
		c.rights = append(c.rights, rights{at: len(c.out), files: files})
	}
	c.out = binary.LittleEndian.AppendUint32(c.out, uint32(len(header)))
	c.out = binary.LittleEndian.AppendUint32(c.out, uint32(len(body)))
	c.out = binary.LittleEndian.AppendUint32(c.out, uint32(len(files)))
	c.out = append(append(c.out, header...), body...)
	return nil
}

// flush sends what the socket had no room for, and what has come meanwhile.
func (c *Connection) flush(w write) {
	for {
		if err := w.to(c.raw, true); err != nil {
			for _, r := range w.rights {
				closeAll(r.files)
			}
			c.fail(broken(err))
		}
		if w = c.take(); len(w.out) == 0 {
			return
		}
	}
}

// take takes what is to be sent next; the flush ends with nothing.
func (c *Connection) take() write {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := write{out: c.out, rights: c.rights}
	c.out, c.rights = nil, nil
	c.flushing = len(w.out) > 0
	return w
}

// write is what is left to send.
type write struct {
	out    []byte
	sent   int // bytes before out
	rights []rights
}

// to sends until nothing is left or, unless it waits, the socket has no room.
func (w *write) to(raw syscall.RawConn, wait bool) (err error) {
	full := false
	failed := raw.Write(func(fd uintptr) bool {
		for len(w.out) > 0 && err == nil {
			if full, err = w.some(int(fd)); full {
				return !wait
			}
		}
		return true
	})
	return errors.Join(failed, err)
}

// some sends a part, up to the next frame that has descriptors.
func (w *write) some(fd int) (full bool, err error) {
	part := w.out
	var control []byte
	if len(w.rights) > 0 {
		next := w.rights[0].at - w.sent
		if next == 0 {
			control = unix.UnixRights(w.rights[0].files...)
			if len(w.rights) > 1 {
				part = part[:w.rights[1].at-w.sent]
			}
		} else {
			part = part[:next]
		}
	}
	n, err := unix.SendmsgN(fd, part, control, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return true, nil
	case errors.Is(err, unix.EINTR):
		return false, nil
	case err != nil:
		return false, err
	}
	if control != nil && n > 0 {
		closeAll(w.rights[0].files)
		w.rights = w.rights[1:]
	}
	w.out, w.sent = w.out[n:], w.sent+n
	return false, nil
}

// Frame is what was received.
type Frame struct {
	// Header is valid until the next call of Receive.
	Header []byte
	// Body is the receiver's to release; nil if it is empty.
	Body *tensor.Buffer
	// Files are descriptors, the receiver's to close.
	Files []int
}

// Receive waits for a frame.
func (c *Connection) Receive() (Frame, error) {
	if err := c.fill(headBytes); err != nil {
		return Frame{}, err
	}
	head := c.in[c.next:]
	header, body, files := binary.LittleEndian.Uint32(head), binary.LittleEndian.Uint32(head[4:]), binary.LittleEndian.Uint32(head[8:])
	if header > MaxHeader || body > maxBody || files > maxRights {
		return Frame{}, fmt.Errorf("a stub may not send a message of %d and %d bytes with %d files", header, body, files)
	}
	if int(files) > len(c.received) {
		return Frame{}, fmt.Errorf("a message of the stub has %d files, and %d came", files, len(c.received))
	}
	if err := c.fill(headBytes + int(header)); err != nil {
		return Frame{}, err
	}
	f := Frame{Header: c.in[c.next+headBytes : c.next+headBytes+int(header)]}
	c.next += headBytes + int(header)
	if body > 0 {
		b, err := c.pool.Get(int(body))
		if err != nil {
			return Frame{}, err
		}
		if err := c.readBody(b.Bytes()); err != nil {
			b.Release()
			return Frame{}, err
		}
		f.Body = b
	}
	if files > 0 {
		f.Files = append([]int(nil), c.received[:files]...)
		c.received = append(c.received[:0], c.received[files:]...)
	}
	return f, nil
}

// fill reads until n bytes are there that have not been given out. What was given
// out before moves away.
func (c *Connection) fill(n int) error {
	if left := len(c.in) - c.next; left == 0 {
		c.in, c.next = c.in[:0], 0
		if cap(c.in) > readBytes && n <= readBytes {
			c.in = make([]byte, 0, readBytes)
		}
	}
	if c.next+n > cap(c.in) {
		room := c.in[:0]
		if n > cap(c.in) {
			room = make([]byte, 0, n)
		}
		c.in, c.next = append(room, c.in[c.next:]...), 0
	}
	for len(c.in)-c.next < n {
		got, err := c.read(c.in[len(c.in):cap(c.in)])
		if err != nil {
			return err
		}
		c.in = c.in[:len(c.in)+got]
	}
	return nil
}

func (c *Connection) readBody(to []byte) error {
	n := copy(to, c.in[c.next:])
	c.next += n
	for n < len(to) {
		got, err := c.read(to[n:])
		if err != nil {
			return err
		}
		n += got
	}
	return nil
}

// read reads some bytes, and takes the descriptors that come with them.
func (c *Connection) read(to []byte) (int, error) {
	r := &c.reading
	r.to = to
	if err := c.raw.Read(r.do); err != nil {
		return 0, err
	}
	r.to = nil
	if r.err != nil && !errors.Is(r.err, unix.EINTR) {
		return 0, broken(r.err)
	}
	if r.control > 0 {
		if err := c.keep(c.control[:r.control]); err != nil {
			return 0, err
		}
	}
	if r.flags&unix.MSG_CTRUNC != 0 || len(c.received) > 4*maxRights {
		return 0, errors.New("the stub sent more files than messages can have")
	}
	if r.n <= 0 && r.err == nil {
		return 0, io.EOF
	}
	return max(r.n, 0), nil
}

// keep takes descriptors.
func (c *Connection) keep(control []byte) error {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return broken(err)
	}
	for i := range messages {
		files, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return broken(err)
		}
		c.received = append(c.received, files...)
	}
	return nil
}

// Drop closes the descriptors that no frame has taken. It is called after the last
// Receive.
func (c *Connection) Drop() {
	closeAll(c.received)
	c.received = nil
}
