package rpc_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"
)

// rawClient is a client that grants no window by itself. Frames are written by hand.
type rawClient struct {
	t      *testing.T
	conn   net.Conn
	framer *http2.Framer
	stream uint32       // the last; odd
	format string       // of messages, as it says; none if empty
	data   atomic.Int64 // bytes of responses that have come
	whole  atomic.Int32 // responses that have
	closed chan struct{}

	paused  atomic.Bool // it reads no frame more
	resumed chan struct{}

	mu    sync.Mutex
	ended map[uint32]string // how calls ended: grpc-status and grpc-message, or the code of a reset; guarded by mu
}

// dialRaw connects a client whose calls have a window of so many bytes.
func (s *server) dialRaw(t *testing.T, window uint32) *rawClient {
	t.Helper()
	conn, err := s.listener.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := &rawClient{t: t, conn: conn, framer: http2.NewFramer(conn, conn), closed: make(chan struct{}), resumed: make(chan struct{}), ended: make(map[uint32]string)}
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}); err != nil {
		t.Fatal(err)
	}
	if err := c.framer.WriteWindowUpdate(0, 1+window/2); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(c.resumed) })
	go c.read()
	return c
}

func (c *rawClient) read() {
	defer close(c.closed)
	for {
		if c.paused.Load() {
			<-c.resumed
		}
		frame, err := c.framer.ReadFrame()
		if err != nil {
			return
		}
		switch f := frame.(type) {
		case *http2.DataFrame:
			c.data.Add(int64(len(f.Data())))
		case *http2.MetaHeadersFrame:
			if !f.StreamEnded() {
				continue
			}
			var code, message string
			for _, h := range f.RegularFields() {
				switch h.Name {
				case "grpc-status":
					code = h.Value
				case "grpc-message":
					message = h.Value
				}
			}
			if code == "0" {
				c.whole.Add(1)
			}
			c.end(f.StreamID, strings.TrimSpace(code+" "+message))
		case *http2.RSTStreamFrame:
			c.end(f.StreamID, f.ErrCode.String())
		}
	}
}

func (c *rawClient) end(stream uint32, how string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended[stream] == "" {
		c.ended[stream] = how
	}
}

// endOf returns how a call has ended, empty if it has not.
func (c *rawClient) endOf(stream uint32) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended[stream]
}

func (c *rawClient) isClosed() bool {
	synctest.Wait()
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

// broken reports whether the server has closed the connection of a client that does not read.
func (c *rawClient) broken() bool { return c.framer.WritePing(true, [8]byte{}) != nil }

// open begins a call, and returns its stream.
func (c *rawClient) open(method string) uint32 {
	c.t.Helper()
	c.stream += 2
	if c.stream == 2 {
		c.stream = 1
	}
	if err := c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: c.stream, BlockFragment: c.headers(method), EndHeaders: true}); err != nil {
		c.t.Fatal(err)
	}
	return c.stream
}

func (c *rawClient) headers(method string) []byte {
	c.t.Helper()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	headers := [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"},
	}
	if c.format != "" {
		headers = append(headers, [2]string{"grpc-encoding", c.format})
	}
	for _, h := range headers {
		if err := encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1], Sensitive: true}); err != nil {
			c.t.Fatal(err)
		}
	}
	return block.Bytes()
}

// framed is a message with its prefix.
func framed(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
}

// send sends bytes of a call in frames of at most so many, each once the server has read the
// one before: it resets a call that goes beyond its window.
func (c *rawClient) send(stream uint32, b []byte, most int, last bool) {
	c.t.Helper()
	for len(b) > 0 {
		n := min(len(b), most)
		if err := c.framer.WriteData(stream, n == len(b) && last, b[:n]); err != nil {
			c.t.Fatal(err)
		}
		synctest.Wait()
		b = b[n:]
	}
}

// call begins a call with messages, and ends it on its side unless it is a stream.
func (c *rawClient) call(method string, stream bool, messages ...proto.Message) uint32 {
	c.t.Helper()
	id := c.open(method)
	for i, m := range messages {
		c.send(id, framed(c.t, m), 16<<10, i == len(messages)-1 && !stream)
	}
	return id
}

// pass lets time pass.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}
