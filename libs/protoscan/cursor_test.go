package protoscan_test

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/protoscan"
)

// split puts data into buffers of the given sizes, and the rest into one more.
func split(data []byte, sizes ...int) mem.BufferSlice {
	var list mem.BufferSlice
	for _, n := range sizes {
		n = min(n, len(data))
		list = append(list, mem.SliceBuffer(data[:n]))
		data = data[n:]
	}
	return append(list, mem.SliceBuffer(data))
}

// bytewise puts each byte into a buffer of its own.
func bytewise(data []byte) mem.BufferSlice {
	sizes := make([]int, len(data))
	for i := range sizes {
		sizes[i] = 1
	}
	return split(data, sizes...)
}

// field is a field as both readers tell it.
type field struct {
	Num    protowire.Number
	Type   protowire.Type
	Number uint64
	Bytes  string
}

// scan reads all fields with a cursor.
func scan(data mem.BufferSlice) (list []field, err error) {
	c := protoscan.New(data)
	for c.Left() > 0 {
		tag, err := c.Field()
		if err != nil {
			return list, err
		}
		f := field{Num: tag.Num, Type: tag.Type}
		switch tag {
		case protoscan.Varint(tag.Num):
			f.Number, err = c.Varint()
		case protoscan.Fixed64(tag.Num):
			f.Number, err = c.Fixed64()
		case protoscan.Text(tag.Num):
			var b []byte
			b, err = c.Bytes()
			f.Bytes = string(b)
		default:
			err = c.SkipField(tag)
		}
		if err != nil {
			return list, err
		}
		list = append(list, f)
	}
	return list, nil
}

// consume reads all fields with protobuf's own functions.
func consume(data []byte) (list []field) {
	for len(data) > 0 {
		num, typ, n := protowire.ConsumeTag(data)
		data = data[n:]
		f := field{Num: num, Type: typ}
		switch typ {
		case protowire.VarintType:
			f.Number, n = protowire.ConsumeVarint(data)
		case protowire.Fixed64Type:
			f.Number, n = protowire.ConsumeFixed64(data)
		case protowire.BytesType:
			var b []byte
			b, n = protowire.ConsumeBytes(data)
			f.Bytes = string(b)
		default:
			n = protowire.ConsumeFieldValue(num, typ, data)
		}
		data = data[n:]
		list = append(list, f)
	}
	return list
}

// drawMessage draws a message of valid fields.
func drawMessage(t *rapid.T) []byte {
	var data []byte
	for range rapid.IntRange(0, 6).Draw(t, "fields") {
		num := protowire.Number(rapid.SampledFrom([]int32{1, 15, 16, 2047, 2048, int32(protowire.MaxValidNumber)}).Draw(t, "number"))
		switch rapid.IntRange(0, 4).Draw(t, "kind") {
		case 0:
			value := rapid.SampledFrom([]uint64{0, 1, 127, 128, 1 << 14, 1 << 32, math.MaxUint64}).Draw(t, "varint")
			data = protowire.AppendVarint(protowire.AppendTag(data, num, protowire.VarintType), value)
		case 1:
			data = protowire.AppendFixed64(protowire.AppendTag(data, num, protowire.Fixed64Type), rapid.Uint64().Draw(t, "fixed64"))
		case 2:
			data = protowire.AppendFixed32(protowire.AppendTag(data, num, protowire.Fixed32Type), rapid.Uint32().Draw(t, "fixed32"))
		case 3:
			data = protowire.AppendBytes(protowire.AppendTag(data, num, protowire.BytesType), rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "bytes"))
		case 4:
			data = protowire.AppendTag(data, num, protowire.StartGroupType)
			data = protowire.AppendBytes(protowire.AppendTag(data, 3, protowire.BytesType), []byte("inside"))
			data = protowire.AppendTag(data, num, protowire.EndGroupType)
		}
	}
	return data
}

func TestFieldsAreThoseOfProtobufWhereverBuffersEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := drawMessage(t)
		sizes := rapid.SliceOfN(rapid.IntRange(0, 20), 0, 30).Draw(t, "sizes")
		want := consume(data)
		for _, buffers := range []mem.BufferSlice{split(data), split(data, sizes...), bytewise(data)} {
			got, err := scan(buffers)
			if err != nil || len(got) != len(want) {
				t.Fatalf("%d fields and %v, want %d of %x", len(got), err, len(want), data)
			}
			for i := range want {
				if got[i] != want[i] {
					t.Fatalf("field %d is %+v, want %+v", i, got[i], want[i])
				}
			}
		}
	})
}

// FuzzSkipField holds what is accepted of unknown fields against proto.Unmarshal.
func FuzzSkipField(f *testing.F) {
	f.Add([]byte{0x08, 0x96, 0x01})
	f.Add([]byte{0x0b, 0x12, 0x01, 'x', 0x0c})                          // a group
	f.Add([]byte{0x0b, 0x14})                                           // closed by another
	f.Add([]byte{0x0c})                                                 // never opened
	f.Add([]byte{0x00, 0x00})                                           // number 0
	f.Add(protowire.AppendVarint(nil, uint64(1)<<32))                   // a number too large
	f.Add([]byte{0x09, 1, 2, 3})                                        // cut off
	f.Add([]byte{0x0d, 1, 2, 3})                                        // cut off
	f.Add([]byte{0x0e})                                                 // no wire type
	f.Add([]byte{0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80}) // no end
	f.Add(bytes.Repeat([]byte{0x0b}, 20_000))
	f.Fuzz(func(t *testing.T, data []byte) {
		want := proto.Unmarshal(data, new(emptypb.Empty)) == nil
		for _, buffers := range []mem.BufferSlice{split(data), split(data, 1, 2, 3), bytewise(data)} {
			c := protoscan.New(buffers)
			var err error
			for err == nil && c.Left() > 0 {
				var tag protoscan.Field
				if tag, err = c.Field(); err == nil {
					err = c.SkipField(tag)
				}
			}
			if got := err == nil; got != want {
				t.Fatalf("%x is accepted: %t (%v), by proto.Unmarshal: %t", data, got, err, want)
			}
		}
	})
}

func TestGroupsNestAsDeepAsProtobufReads(t *testing.T) {
	for _, depth := range []int{protowire.DefaultRecursionLimit, protowire.DefaultRecursionLimit + 1, protowire.DefaultRecursionLimit + 2} {
		data := append(bytes.Repeat([]byte{0x0b}, depth), bytes.Repeat([]byte{0x0c}, depth)...)
		want := proto.Unmarshal(data, new(emptypb.Empty)) == nil
		if _, err := scan(split(data)); (err == nil) != want {
			t.Errorf("%d groups: %v, proto.Unmarshal takes them: %t", depth, err, want)
		}
	}
}

func TestWhatIsCutOffIsTold(t *testing.T) {
	text := protowire.AppendString(nil, "hello")
	for n := range text {
		for _, buffers := range []mem.BufferSlice{split(text[:n]), bytewise(text[:n])} {
			c := protoscan.New(buffers)
			if b, err := c.Bytes(); err == nil {
				t.Errorf("%d of %d bytes read as %q", n, len(text), b)
			}
			c = protoscan.New(buffers)
			if _, err := c.Message(); err == nil {
				t.Errorf("%d of %d bytes are a message", n, len(text))
			}
		}
	}
	for n := range 8 {
		c := protoscan.New(bytewise(make([]byte, n)))
		if _, err := c.Fixed64(); !errors.Is(err, protoscan.ErrTruncated) {
			t.Errorf("%d bytes of 8: %v", n, err)
		}
	}
	c := protoscan.New(split([]byte{1, 2, 3}))
	if _, err := c.Next(4); !errors.Is(err, protoscan.ErrTruncated) {
		t.Errorf("4 bytes of 3: %v", err)
	}
	// A length is never believed before the bytes are there.
	c = protoscan.New(split(protowire.AppendVarint(nil, math.MaxUint64)))
	if _, err := c.Bytes(); !errors.Is(err, protoscan.ErrTruncated) {
		t.Errorf("a length without end: %v", err)
	}
}

func TestInnerCursorsEndWithTheirField(t *testing.T) {
	inner := protowire.AppendVarint(protowire.AppendVarint(nil, 5), 300)
	data := append(protowire.AppendBytes(nil, inner), 7)
	for _, buffers := range []mem.BufferSlice{split(data), split(data, 2), bytewise(data)} {
		c := protoscan.New(buffers)
		m, err := c.Message()
		if err != nil || m.Left() != len(inner) || c.Left() != 1 {
			t.Fatalf("%v: %d bytes inside, %d after", err, m.Left(), c.Left())
		}
		for _, want := range []uint64{5, 300} {
			if got, err := m.Varint(); got != want || err != nil {
				t.Errorf("inside: %d, %v, want %d", got, err, want)
			}
		}
		if v, err := m.Varint(); err == nil {
			t.Errorf("behind its end the inner cursor reads %d", v)
		}
		if v, err := c.Varint(); v != 7 || err != nil {
			t.Errorf("after: %d, %v, want 7", v, err)
		}
	}
}

func TestBytesShareTheMessageWhereTheyLieInOneBuffer(t *testing.T) {
	data := protowire.AppendString(nil, "hello")
	whole := protoscan.New(split(append(data, 1)))
	b, err := whole.Bytes()
	if err != nil || string(b) != "hello" || cap(b) != 5 || &b[0] != &data[1] && b[0] == 0 {
		t.Fatalf("%q of capacity %d, %v", b, cap(b), err)
	}
	if n := testing.AllocsPerRun(100, func() {
		c := whole
		_, _ = c.Varint()
	}); n != 0 {
		t.Errorf("%.0f allocations", n)
	}
	parts := protoscan.New(split(data, 3))
	if b, err := parts.Bytes(); err != nil || string(b) != "hello" {
		t.Errorf("over two buffers: %q, %v", b, err)
	}
}

func TestCopyAndSkip(t *testing.T) {
	c := protoscan.New(split([]byte("abcdef"), 2, 0, 1))
	c.Skip(1)
	dst := make([]byte, 3)
	if n := c.CopyTo(dst); n != 3 || string(dst) != "bcd" || c.Left() != 2 {
		t.Errorf("%d bytes %q, %d left", n, dst, c.Left())
	}
	if n := c.CopyTo(dst); n != 2 || string(dst[:n]) != "ef" || c.Left() != 0 {
		t.Errorf("%d bytes %q, %d left", n, dst[:n], c.Left())
	}
}

func TestStringsAreUTF8(t *testing.T) {
	for text, want := range map[string]bool{"": true, "grün": true, "\xff": false} {
		c := protoscan.New(split(protowire.AppendString(nil, text)))
		if got, err := c.UTF8(); (err == nil) != want || want && string(got) != text {
			t.Errorf("%q reads as %q, %v", text, got, err)
		}
	}
	c := protoscan.New(split([]byte{5, 'a'}))
	if _, err := c.UTF8(); !errors.Is(err, protoscan.ErrTruncated) {
		t.Errorf("a string that is cut off: %v", err)
	}
}

func TestFieldNumbersAreInTheirRange(t *testing.T) {
	for _, tt := range []struct {
		num uint64
		ok  bool
	}{{0, false}, {1, true}, {uint64(protowire.MaxValidNumber), true}, {uint64(protowire.MaxValidNumber) + 1, false}} {
		c := protoscan.New(split(protowire.AppendVarint(nil, tt.num<<3|2)))
		f, err := c.Field()
		if (err == nil) != tt.ok || tt.ok && f != protoscan.Text(protowire.Number(tt.num)) {
			t.Errorf("number %d: %+v, %v", tt.num, f, err)
		}
	}
}
