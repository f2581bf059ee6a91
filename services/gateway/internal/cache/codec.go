package cache

import (
	"encoding/binary"
	"hash/crc32"
	"math"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// The encoding of an entry for another process: the mark, the outputs, the parameters, and a little-endian
// CRC-32C of all that, in 4 bytes. Numbers are varints; texts and data are preceded by their length.
//
//	outputs     number, then of each: name, datatype, number of dimensions, each, data
//	parameters  number, then of each: key, kind, value
const mark = "NRC\x01"

// Kinds of parameters.
const (
	kindBool = iota
	kindInt
	kindFloat
	kindText
)

// encode encodes an entry. It returns nil if the entry has something that the encoding lacks.
func encode(e *entry) []byte {
	b := append(make([]byte, 0, e.bytes), mark...)
	b = binary.AppendUvarint(b, uint64(len(e.outputs)))
	for i := range e.outputs {
		out := &e.outputs[i]
		data, err := out.Data.Bytes()
		if err != nil {
			return nil
		}
		b = appendBytes(b, out.Name)
		b = appendBytes(b, out.Datatype.String())
		b = binary.AppendUvarint(b, uint64(len(out.Shape)))
		for _, d := range out.Shape {
			b = binary.AppendVarint(b, d)
		}
		b = appendBytes(b, data)
	}
	b = binary.AppendUvarint(b, uint64(len(e.parameters)))
	for _, p := range e.parameters {
		b = appendBytes(b, p.Key)
		switch v := p.Value.(type) {
		case bool:
			b = append(b, kindBool, 0)
			if v {
				b[len(b)-1] = 1
			}
		case int64:
			b = binary.AppendVarint(append(b, kindInt), v)
		case float64:
			b = binary.LittleEndian.AppendUint64(append(b, kindFloat), math.Float64bits(v))
		case string:
			b = appendBytes(append(b, kindText), v)
		default:
			return nil
		}
	}
	return binary.LittleEndian.AppendUint32(b, crc(b))
}

func crc(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

func appendBytes[T string | []byte](b []byte, v T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

// decode decodes an entry, whose data then refers to b. It returns nil if b is not an entry.
func decode(b []byte) *entry {
	body := len(b) - crc32.Size
	if body < len(mark) || string(b[:len(mark)]) != mark || crc(b[:body]) != binary.LittleEndian.Uint32(b[body:]) {
		return nil
	}
	r := valueReader{rest: b[len(mark):body]}
	e := &entry{bytes: entryBytes + int64(len(b))}
	for n := r.count(); n > 0 && !r.broken; n-- {
		e.outputs = append(e.outputs, r.output())
	}
	for n := r.count(); n > 0 && !r.broken; n-- {
		e.parameters = append(e.parameters, r.parameter())
	}
	if r.broken || len(r.rest) > 0 {
		return nil
	}
	return e
}

// valueReader reads the parts of a value. Once broken it reads nothing more.
type valueReader struct {
	rest   []byte
	broken bool
}

func (r *valueReader) fail() { r.rest, r.broken = nil, true }

// count reads a number of parts, each of which takes at least a byte.
func (r *valueReader) count() int {
	n, size := binary.Uvarint(r.rest)
	if size <= 0 || n > uint64(len(r.rest)-size) {
		r.fail()
		return 0
	}
	r.rest = r.rest[size:]
	return int(n)
}

func (r *valueReader) number() int64 {
	n, size := binary.Varint(r.rest)
	if size <= 0 {
		r.fail()
		return 0
	}
	r.rest = r.rest[size:]
	return n
}

func (r *valueReader) take(n int) []byte {
	if n > len(r.rest) {
		r.fail()
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

func (r *valueReader) bytes() []byte { return r.take(r.count()) }

func (r *valueReader) output() (out infer.Tensor) {
	out.Name = string(r.bytes())
	datatype, ok := tensor.ParseDatatype(string(r.bytes()))
	if !ok {
		r.fail()
	}
	out.Datatype = datatype
	out.Shape = make(tensor.Shape, r.count())
	for i := range out.Shape {
		out.Shape[i] = r.number()
	}
	data := r.bytes()
	if size, _ := out.Shape.ByteSize(datatype); datatype.Size() > 0 && size != int64(len(data)) {
		r.fail()
	}
	out.Data = tensor.InHeap(data)
	return out
}

func (r *valueReader) parameter() (p infer.Parameter) {
	p.Key = string(r.bytes())
	kind := r.take(1)
	if kind == nil {
		return p
	}
	switch kind[0] {
	case kindBool:
		b := r.take(1)
		p.Value = b != nil && b[0] == 1
	case kindInt:
		p.Value = r.number()
	case kindFloat:
		if b := r.take(8); b != nil {
			p.Value = math.Float64frombits(binary.LittleEndian.Uint64(b))
		}
	case kindText:
		p.Value = string(r.bytes())
	default:
		r.fail()
	}
	return p
}
