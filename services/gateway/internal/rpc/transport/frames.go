package transport

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

// Sizes of HTTP/2, in bytes.
const (
	headerBytes = 9
	resetBytes  = headerBytes + 4
)

// frame is the header of an HTTP/2 frame.
type frame struct {
	length int
	kind   http2.FrameType
	flags  http2.Flags
	stream uint32
}

func parseFrame(b []byte) frame {
	return frame{
		length: int(b[0])<<16 | int(b[1])<<8 | int(b[2]), kind: http2.FrameType(b[3]), flags: http2.Flags(b[4]),
		stream: binary.BigEndian.Uint32(b[5:]) & (1<<31 - 1),
	}
}

// ends reports whether the frame ends its sender's side of the stream.
func (f frame) ends() bool {
	switch f.kind {
	case http2.FrameData, http2.FrameHeaders:
		return f.flags.Has(http2.FlagDataEndStream) // the same bit in both
	case http2.FrameRSTStream:
		return true
	}
	return false
}

// part says which part of a frame some bytes are.
type part int

const (
	partial part = iota // part of a frame's header, which is still incomplete
	header              // the rest of a frame's header
	payload             // of the current frame
)

// scanner splits the bytes of one direction into frames, however they arrive. It retains only the current
// header.
type scanner struct {
	frame frame // the current one
	left  int   // bytes of its payload still to come
	start [headerBytes]byte
	have  int  // bytes in start
	block bool // a header block is incomplete
}

// afterPreface returns a scanner for what a client sends.
func afterPreface() scanner {
	return scanner{left: len(http2.ClientPreface), frame: frame{kind: 0xff}}
}

// next returns how many bytes of b, which must not be empty, belong together, and what they are.
func (s *scanner) next(b []byte) (int, part) {
	if s.left > 0 {
		n := min(s.left, len(b))
		s.left -= n
		return n, payload
	}
	n := copy(s.start[s.have:], b)
	if s.have += n; s.have < headerBytes {
		return n, partial
	}
	s.have = 0
	s.frame = parseFrame(s.start[:])
	s.left = s.frame.length
	switch s.frame.kind {
	case http2.FrameHeaders, http2.FramePushPromise, http2.FrameContinuation:
		s.block = !s.frame.flags.Has(http2.FlagHeadersEndHeaders) // the same bit in all
	}
	return n, header
}

// between reports whether another frame may be inserted here.
func (s *scanner) between() bool { return s.left == 0 && s.have == 0 && !s.block }

// inside reports whether the bytes end in the payload of a frame.
func (s *scanner) inside() bool { return s.left > 0 }
