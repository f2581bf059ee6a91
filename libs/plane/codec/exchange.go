package codec

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/protoscan"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// The members of TensorMessage.
const (
	ExchangeRegion   protowire.Number = 2
	ExchangeFetch    protowire.Number = 4
	ExchangeFetched  protowire.Number = 5
	ExchangeResponse protowire.Number = 6
	ExchangeTaken    protowire.Number = 7
	ExchangeCredit   protowire.Number = 8
	ExchangeOpened   protowire.Number = 9
	ExchangePart     protowire.Number = 10
	ExchangeRoom     protowire.Number = 17
	ExchangeRelease  protowire.Number = 18
	ExchangeHolds    protowire.Number = 19

	ExchangeCall         protowire.Number = 11
	ExchangeCallResponse protowire.Number = 12
	ExchangeCallCancel   protowire.Number = 13
	ExchangeCallTaken    protowire.Number = 14
	ExchangeControl      protowire.Number = 15
	ExchangeControlDone  protowire.Number = 16
)

// Fetch writes a Fetch of what a reference of place Remote names.
func (w *Writer) Fetch(number uint64, named tensor.Ref) error {
	begun := w.begin(ExchangeFetch)
	w.number(1, number)
	slot := w.open(2)
	w.slot(named)
	w.close(slot)
	return w.end(begun)
}

// Fetched writes a FetchedChunk with the bytes of a local tensor.
func (w *Writer) Fetched(number uint64, data tensor.Ref) error {
	begun := w.begin(ExchangeFetched)
	w.number(1, number)
	w.data(2, data)
	return w.end(begun)
}

// Unfetched writes a FetchedChunk that ends the fetch with an error.
func (w *Writer) Unfetched(number uint64, err error) error {
	begun := w.begin(ExchangeFetched)
	w.number(1, number)
	w.error(3, err)
	return w.end(begun)
}

// Part writes a Part of an output of so many bytes.
func (w *Writer) Part(number, size uint64, data tensor.Ref) error {
	begun := w.begin(ExchangePart)
	w.number(1, number)
	w.number(2, size)
	w.data(3, data)
	return w.end(begun)
}

// Taken writes a Taken.
func (w *Writer) Taken(responses uint64) error {
	begun := w.begin(ExchangeTaken)
	w.number(1, responses)
	return w.end(begun)
}

// Room writes a Room of a request, by its number.
func (w *Writer) Room(request uint64, responses uint32) error {
	begun := w.begin(ExchangeRoom)
	w.number(1, request)
	w.number(2, uint64(responses))
	return w.end(begun)
}

// Release writes a Release.
func (w *Writer) Release(kept uint64) error {
	begun := w.begin(ExchangeRelease)
	w.number(1, kept)
	return w.end(begun)
}

// Chunk is some of a tensor's bytes.
type Chunk struct {
	// Number is that of the fetch or part.
	Number uint64
	// Size is the whole tensor's, where the message says it.
	Size uint64
	// Err ends a fetch.
	Err  error
	data protoscan.Cursor
}

// Len is how many bytes have come.
func (c *Chunk) Len() int { return c.data.Left() }

// CopyTo copies the bytes, once. It is called while the message is handed over.
func (c *Chunk) CopyTo(to []byte) { c.data.CopyTo(to) }

// Fetch reads a Fetch.
func (r *Reader) Fetch(b Body) (number uint64, named tensor.Ref, err error) {
	s := r.begin(b)
	named.Place = tensor.Remote
	for s.next() {
		switch s.field {
		case varint(1):
			number = s.number()
		case text(2):
			s.remote(&named)
		default:
			s.skip()
		}
	}
	if named.Length < 0 || named.Offset < 0 || named.Offset > math.MaxInt64-named.Length {
		r.fail(malformed("a fetch of %d bytes at %d", named.Length, named.Offset))
	}
	return number, named, r.end()
}

// Fetched reads a FetchedChunk.
func (r *Reader) Fetched(b Body) (Chunk, error) { return r.chunk(b, 2, 3) }

// Part reads a Part.
func (r *Reader) Part(b Body) (Chunk, error) { return r.chunk(b, 3, 0) }

func (r *Reader) chunk(b Body, data, failure protowire.Number) (c Chunk, err error) {
	s := r.begin(b)
	for s.next() {
		switch {
		case s.field == varint(1):
			c.Number = s.number()
		case s.field == text(data):
			c.data = s.message().Cursor
		case s.field == text(failure):
			s.error(&c.Err)
		case s.field == varint(2):
			c.Size = s.number()
		default:
			s.skip()
		}
	}
	return c, r.end()
}

// Taken reads a Taken.
func (r *Reader) Taken(b Body) (responses uint64, err error) { return r.one(b) }

// Release reads a Release.
func (r *Reader) Release(b Body) (kept uint64, err error) { return r.one(b) }

// one reads a message of one number.
func (r *Reader) one(b Body) (number uint64, err error) {
	s := r.begin(b)
	for s.next() {
		if s.field == varint(1) {
			number = s.number()
			continue
		}
		s.skip()
	}
	return number, r.end()
}

// Room reads a Room.
func (r *Reader) Room(b Body) (request uint64, responses uint32, err error) {
	s := r.begin(b)
	for s.next() {
		switch s.field {
		case varint(1):
			request = s.number()
		case varint(2):
			responses = uint32(s.number())
		default:
			s.skip()
		}
	}
	return request, responses, r.end()
}
