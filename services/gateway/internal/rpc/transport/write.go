package transport

import (
	"bytes"
	"encoding/base64"
	"slices"
	"strconv"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Write implements net.Conn for gRPC's writer.
func (c *Connection) Write(b []byte) (int, error) {
	sent := c.write(b)
	last := c.sent.between() && c.leaving.CompareAndSwap(true, false)
	if last {
		sent = slices.Concat(sent, goAway())
	}
	if _, err := c.Conn.Write(sent); err != nil {
		return 0, err
	}
	if last {
		c.told()
	}
	return len(b), nil
}

// write counts bytes that gRPC writes, and returns the bytes to send instead: if gRPC resets a call on behalf
// of the server, the client gets the cause. A frame that gRPC writes in two pieces is not changed.
func (c *Connection) write(b []byte) []byte {
	var out []byte
	copied := 0
	c.mu.Lock()
	defer c.mu.Unlock()
	for at := 0; at < len(b); {
		n, part := c.sent.next(b[at:])
		f := &c.sent.frame
		s := c.streams[f.stream]
		if part == header && (f.kind == http2.FrameData || f.kind == http2.FrameHeaders) {
			c.responded.Store(true)
		}
		switch {
		case part == header && f.kind == http2.FrameData && f.length > 0:
			c.answers.Add(1)
		case s == nil || part == partial:
		case part == payload && f.kind == http2.FrameData:
			s.wrote(b[at : at+n])
		case part == header && f.ends():
			end := c.endedLocked(s, f)
			if end != nil && n == headerBytes && at+resetBytes <= len(b) {
				out = append(append(out, b[copied:at]...), end...)
				copied = at + resetBytes
			}
		case part == header && f.kind == http2.FrameHeaders:
			s.started = true
		}
		at += n
	}
	if out == nil {
		return b
	}
	return append(out, b[copied:]...)
}

// endedLocked closes the ledger of a call that ends with the frame. If the server has reset the call, it
// returns what its client gets instead.
func (c *Connection) endedLocked(s *Stream, f *frame) []byte {
	c.endLocked(s)
	if s.cause == nil || f.kind != http2.FrameRSTStream {
		return nil
	}
	return ending(s.id, c.all.options.Reset(s.cause), s.started, s.halfClosed, s.sending.between())
}

// ending returns the frames that end a call with a status. If a message is only partly written, no status can
// follow, and the call is canceled.
func ending(id uint32, st *status.Status, started, halfClosed, whole bool) []byte {
	var frames, block bytes.Buffer
	framer := http2.NewFramer(&frames, nil)
	if !whole {
		_ = framer.WriteRSTStream(id, http2.ErrCodeCancel) // writes into memory
		return frames.Bytes()
	}
	encoder := hpack.NewEncoder(&block)
	field := func(name, value string) {
		// gRPC's own encoder shares the client's table, so no field may enter it.
		_ = encoder.WriteField(hpack.HeaderField{Name: name, Value: value, Sensitive: true})
	}
	if !started {
		field(":status", "200")
		field("content-type", "application/grpc")
	}
	field("grpc-status", strconv.Itoa(int(st.Code())))
	field("grpc-message", st.Message())
	if len(st.Proto().GetDetails()) > 0 {
		if details, err := proto.Marshal(st.Proto()); err == nil {
			field("grpc-status-details-bin", base64.RawStdEncoding.EncodeToString(details))
		}
	}
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
	if !halfClosed {
		_ = framer.WriteRSTStream(id, http2.ErrCodeNo)
	}
	return frames.Bytes()
}
