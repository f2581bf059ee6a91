package codec

import (
	"math"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/protoscan"
	"github.com/nereid-serving/nereid/libs/tensor"
)

const (
	// maxEntries bounds the inputs, outputs, parameters, requests and the like
	// of one message together: an empty one takes two bytes on the wire and
	// many times as much in memory.
	maxEntries = 1 << 16
	// maxNames bounds how many names are remembered.
	maxNames = 1 << 12
	// maxName is the length from which a name is not remembered.
	maxName = 128
)

// Reader reads what one stream brings. It is not safe for concurrent use.
type Reader struct {
	pool    *tensor.Pool
	names   map[string]string // those of models, tensors and the like, which come again and again
	pack    tensor.Packer
	entries int
	err     error // of the message that is being read
}

// NewReader makes a reader that puts tensors into buffers of the pool.
func NewReader(pool *tensor.Pool) *Reader {
	return &Reader{pool: pool, names: make(map[string]string)}
}

// malformed is the error by which a stream ends whose peer sent what cannot be
// read, what no peer may say, or more than any needs.
func malformed(format string, args ...any) error {
	return errs.New(errs.PeerMalformed, format, args...)
}

// Body is the member that a message of a stream has.
type Body struct{ cursor protoscan.Cursor }

// Each calls receive for the messages of an envelope, in their order, with the
// member that each has and its content. The content is valid during the call.
// It ends with the first error.
func (r *Reader) Each(envelope mem.BufferSlice, receive func(member protowire.Number, b Body) error) error {
	s := r.scan(protoscan.New(envelope))
	for s.next() {
		if s.field != text(messages) {
			s.skip()
			continue
		}
		member, body := s.one()
		if r.err != nil {
			break
		}
		if err := receive(member, body); err != nil {
			return err
		}
		r.err = nil
	}
	return r.end()
}

// one reads a message of a stream, which has one member.
func (s *scan) one() (member protowire.Number, b Body) {
	m := s.message()
	for m.next() {
		if m.field.Type != protowire.BytesType {
			m.skip()
			continue
		}
		if member != 0 {
			s.rd.fail(malformed("a message of a stream has two members: %d and %d", member, m.field.Num))
			return 0, Body{}
		}
		member, b.cursor = m.field.Num, m.message().Cursor
	}
	if member == 0 {
		s.rd.fail(malformed("a message of a stream has no member"))
	}
	return member, b
}

// Message reads a message of a kind that is rare.
func (r *Reader) Message(b Body, m proto.Message) error {
	data := make([]byte, b.cursor.Left())
	b.cursor.CopyTo(data)
	if err := proto.Unmarshal(data, m); err != nil {
		return unreadable(err)
	}
	return nil
}

// begin readies the reader for a message.
func (r *Reader) begin(b Body) scan {
	r.entries, r.pack = 0, tensor.Packer{}
	return r.scan(b.cursor)
}

// end returns the error of the message.
func (r *Reader) end() error {
	err := r.err
	r.err = nil
	if err == nil || errs.Classified(err) {
		return err
	}
	return unreadable(err)
}

func unreadable(err error) error {
	return errs.Wrap(errs.PeerMalformed, err, "a message of a stream cannot be read: %v", err)
}

func (r *Reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// entry counts an element of a list.
func (r *Reader) entry() {
	if r.entries++; r.entries > maxEntries {
		r.fail(malformed("a message of a stream has more than %d entries", maxEntries))
	}
}

// scan reads a message. After an error, which the reader keeps, it gives
// nothing more.
type scan struct {
	protoscan.Cursor
	rd    *Reader
	field protoscan.Field
}

func (r *Reader) scan(c protoscan.Cursor) scan { return scan{Cursor: c, rd: r} }

func text(num protowire.Number) protoscan.Field   { return protoscan.Text(num) }
func varint(num protowire.Number) protoscan.Field { return protoscan.Varint(num) }

// next reads the next field's tag, if there is one.
func (s *scan) next() bool {
	if s.rd.err != nil || s.Left() == 0 {
		return false
	}
	f, err := s.Field()
	if err != nil {
		s.rd.fail(err)
		return false
	}
	s.field = f
	return true
}

func (s *scan) skip() {
	if err := s.SkipField(s.field); err != nil {
		s.rd.fail(err)
	}
}

func (s *scan) message() scan {
	c, err := s.Message()
	if err != nil {
		s.rd.fail(err)
	}
	return s.rd.scan(c)
}

func (s *scan) number() uint64 {
	v, err := s.Varint()
	if err != nil {
		s.rd.fail(err)
	}
	return v
}

func (s *scan) bool() bool { return protowire.DecodeBool(s.number()) }

func (s *scan) float() float64 {
	v, err := s.Fixed64()
	if err != nil {
		s.rd.fail(err)
	}
	return math.Float64frombits(v)
}

func (s *scan) raw() []byte {
	b, err := s.UTF8()
	if err != nil {
		s.rd.fail(err)
	}
	return b
}

// string reads a text that is unlikely to come again.
func (s *scan) string() string { return string(s.raw()) }

// name reads a text that comes again and again.
func (s *scan) name() string {
	b := s.raw()
	if known, ok := s.rd.names[string(b)]; ok {
		return known
	}
	name := string(b)
	if len(name) >= maxName {
		return name
	}
	if len(s.rd.names) >= maxNames {
		clear(s.rd.names)
	}
	s.rd.names[name] = name
	return name
}

// list reads numbers of a repeated field, packed or not, and calls add for each.
func (s *scan) list(num protowire.Number, add func(uint64)) bool {
	switch s.field {
	case varint(num):
		add(s.number())
	case text(num):
		for m := s.message(); s.rd.err == nil && m.Left() > 0; {
			add(m.number())
		}
	default:
		return false
	}
	return true
}

// duration is a number of nanoseconds, as many as fit.
func duration(ns uint64) time.Duration { return time.Duration(min(ns, math.MaxInt64)) }

// after is the time d after now, or the last one.
func after(now mono.Time, ns uint64) mono.Time {
	if left := uint64(math.MaxInt64 - now); ns > left {
		return math.MaxInt64
	}
	return now + mono.Time(ns)
}

// before is the time d before now, or the first one that is a time.
func before(now mono.Time, ns uint64) mono.Time {
	if ns >= uint64(max(now, 1)) {
		return 1
	}
	return now - mono.Time(ns)
}

// nanoseconds is a duration as it is sent.
func nanoseconds(d time.Duration) uint64 { return uint64(max(d, 0)) }
