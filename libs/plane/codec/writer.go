package codec

import (
	"math"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/splice"
	"github.com/nereid-serving/nereid/libs/tensor"
)

const (
	// messages is the one field of every envelope.
	messages = 1
	// lendFrom is the size in bytes from which a tensor is sent from where it
	// lies. A smaller one is cheaper to copy.
	lendFrom = 8 << 10
	// maxMessage bounds one message, in bytes.
	maxMessage = 1 << 29
	// lengthRoom is what is set aside for the length of a message before it is
	// known: enough for 16 KiB, beyond which what follows is moved.
	lengthRoom = 2
)

// Writer puts messages one after the other into an envelope. The zero value is
// an empty envelope. It is not safe for concurrent use.
//
// A message that cannot be written leaves the envelope as it was.
type Writer struct {
	spares *Spares
	own    *[]byte // where bytes began, for Spares
	bytes  []byte
	loans  []splice.Tensor
	lent   int   // bytes of the loans
	count  int   // of messages
	err    error // of the message that is being written
}

// NewWriter makes a writer that takes its memory from spares.
func NewWriter(spares *Spares) *Writer { return &Writer{spares: spares} }

// Len is the size of the envelope in bytes.
func (w *Writer) Len() int { return len(w.bytes) + w.lent }

// Count is the number of its messages.
func (w *Writer) Count() int { return w.count }

// Take returns the envelope, whose buffers are the caller's to free, and begins
// the next one.
func (w *Writer) Take() mem.BufferSlice {
	own := w.own
	if own == nil {
		return nil
	}
	*own = w.bytes
	whole := mem.NewBuffer(own, w.spares)
	taken := mem.BufferSlice{whole}
	if len(w.loans) > 0 {
		taken = splice.Join(whole, w.loans)
	}
	clear(w.loans)
	*w = Writer{spares: w.spares, loans: w.loans[:0]}
	return taken
}

// Drop empties the envelope.
func (w *Writer) Drop() { w.Take().Free() }

// Message writes a message of a kind that is rare, as the member of its stream's
// messages that the field is.
func (w *Writer) Message(member protowire.Number, m proto.Message) error {
	begun := w.begin(member)
	if b, err := (proto.MarshalOptions{}).MarshalAppend(w.bytes, m); err != nil {
		w.fail(err)
	} else {
		w.bytes = b
	}
	return w.end(begun)
}

// Whole writes a message of the stream's own kind, with its member.
func (w *Writer) Whole(m proto.Message) error {
	before := w.state()
	whole := w.open(messages)
	if b, err := (proto.MarshalOptions{}).MarshalAppend(w.bytes, m); err != nil {
		w.fail(err)
	} else {
		w.bytes = b
	}
	return w.finish(before, whole)
}

// entry is a message of the envelope that is being written.
type entry struct {
	outer, inner nested
	before       state
}

// state is what is undone when a message cannot be written.
type state struct{ bytes, loans, lent int }

func (w *Writer) state() state {
	if w.own == nil {
		w.own = w.spares.get()
		w.bytes = (*w.own)[:0]
	}
	return state{len(w.bytes), len(w.loans), w.lent}
}

// begin opens a message of the envelope and its one member.
func (w *Writer) begin(member protowire.Number) entry {
	before := w.state()
	outer := w.open(messages)
	return entry{outer: outer, inner: w.open(member), before: before}
}

// end closes them, or undoes what was written.
func (w *Writer) end(e entry) error {
	if w.err == nil {
		w.close(e.inner)
	}
	return w.finish(e.before, e.outer)
}

// finish closes a message of the envelope, or undoes what was written.
func (w *Writer) finish(before state, whole nested) error {
	if size := len(w.bytes) - before.bytes + w.lent - before.lent; w.err == nil && size > maxMessage {
		w.fail(errs.New(errs.InputTooLarge, "a message of %d bytes exceeds the %d that services send each other", size, maxMessage))
	}
	if err := w.err; err != nil {
		for i := before.loans; i < len(w.loans); i++ {
			w.loans[i].Data.Release()
		}
		w.bytes, w.loans, w.lent, w.err = w.bytes[:before.bytes], w.loans[:before.loans], before.lent, nil
		return err
	}
	w.close(whole)
	w.count++
	return nil
}

func (w *Writer) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}

// nested is a message within a message whose length is not known yet.
type nested struct {
	at    int // where it begins
	loans int
	lent  int
}

// open begins a nested message.
func (w *Writer) open(num protowire.Number) nested {
	w.bytes = append(protowire.AppendTag(w.bytes, num, protowire.BytesType), 0, 0)
	return nested{len(w.bytes), len(w.loans), w.lent}
}

// close writes the length of a nested message. One in two bytes that would fit
// into one is as good.
func (w *Writer) close(n nested) {
	length := len(w.bytes) - n.at + w.lent - n.lent
	at := n.at - lengthRoom
	if length < 1<<14 {
		w.bytes[at], w.bytes[at+1] = byte(length)|0x80, byte(length>>7)
		return
	}
	more := protowire.SizeVarint(uint64(length)) - lengthRoom
	w.bytes = append(w.bytes, make([]byte, more)...)
	copy(w.bytes[n.at+more:], w.bytes[n.at:])
	protowire.AppendVarint(w.bytes[:at], uint64(length))
	for i := n.loans; i < len(w.loans); i++ {
		w.loans[i].At += more
	}
}

// number writes a number, unless it is 0.
func (w *Writer) number(num protowire.Number, v uint64) {
	if v != 0 {
		w.bytes = protowire.AppendVarint(protowire.AppendTag(w.bytes, num, protowire.VarintType), v)
	}
}

func (w *Writer) bool(num protowire.Number, v bool) { w.number(num, protowire.EncodeBool(v)) }

// entries refuses a message with more inputs, outputs and parameters than a peer
// would read: it would end its stream, with all that is on it.
func (w *Writer) entries(n int) {
	if n > maxEntries {
		w.fail(errs.New(errs.TransferFailed, "%d inputs, outputs and parameters together cannot be sent to another process, %d is the most", n, maxEntries))
	}
}

// text writes a string, unless it is empty. A string that is none by the
// rules of the protocol would end the stream, and with it what others send.
func (w *Writer) text(num protowire.Number, s string) {
	if s != "" {
		w.member(num, s)
	}
}

// member writes a string also when it is empty.
func (w *Writer) member(num protowire.Number, s string) {
	if !utf8.ValidString(s) {
		w.fail(errs.New(errs.InvalidParameter, "the text %q is not valid UTF-8", s))
		return
	}
	w.bytes = protowire.AppendString(protowire.AppendTag(w.bytes, num, protowire.BytesType), s)
}

// valid writes a string, unless it is empty, without what is not valid in it.
func (w *Writer) valid(num protowire.Number, s string) { w.text(num, strings.ToValidUTF8(s, "\uFFFD")) }

func (w *Writer) float(num protowire.Number, v float64) {
	w.bytes = protowire.AppendFixed64(protowire.AppendTag(w.bytes, num, protowire.Fixed64Type), math.Float64bits(v))
}

// data writes the bytes of a local tensor, or lends them.
func (w *Writer) data(num protowire.Number, r tensor.Ref) {
	b, err := r.Bytes()
	if err != nil {
		w.fail(err)
		return
	}
	w.bytes = protowire.AppendVarint(protowire.AppendTag(w.bytes, num, protowire.BytesType), uint64(len(b)))
	if len(b) < lendFrom {
		w.bytes = append(w.bytes, b...)
		return
	}
	w.loans = append(w.loans, splice.Tensor{At: len(w.bytes), Data: r.Retain()})
	w.lent += len(b)
}
