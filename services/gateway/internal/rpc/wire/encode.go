package wire

import (
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/splice"
)

// Response is the content of a ModelInferResponse. Outputs are sent as raw_output_contents, one entry each, in
// order.
type Response struct {
	Model, Version, ID string
	Parameters         []infer.Parameter
	Outputs            []infer.Tensor
}

// Size returns the number of bytes of the message, including gaps. It fails for a parameter whose type the
// protocol lacks, and for output bytes that cannot be read in this process.
func (r *Response) Size() (int, error) {
	n := sizeText(1, len(r.Model)) + sizeText(2, len(r.Version)) + sizeText(3, len(r.ID))
	for i := range r.Parameters {
		size, err := sizeParameter(&r.Parameters[i])
		if err != nil {
			return 0, err
		}
		n += sizeField(4, size)
	}
	for i := range r.Outputs {
		out := &r.Outputs[i]
		data, err := out.Data.Bytes()
		if err != nil {
			return 0, fmt.Errorf("encode output %q: %w", out.Name, err)
		}
		n += sizeField(5, sizeOutput(out)) + sizeField(6, len(data))
	}
	return n, nil
}

// Bulk returns the total size of the outputs of at least least bytes.
func (r *Response) Bulk(least int64) int {
	n := int64(0)
	for i := range r.Outputs {
		if size := r.Outputs[i].Data.Length; size >= least {
			n += size
		}
	}
	return int(n)
}

// Append appends the message to b, without the bytes of outputs of at least least bytes. It returns those as
// gaps, without references of their own. [Response.Size] must have succeeded before.
func (r *Response) Append(b []byte, least int64) ([]byte, []splice.Tensor) {
	b = appendText(b, 1, r.Model)
	b = appendText(b, 2, r.Version)
	b = appendText(b, 3, r.ID)
	for i := range r.Parameters {
		b = appendParameter(b, &r.Parameters[i])
	}
	for i := range r.Outputs {
		b = appendOutput(b, &r.Outputs[i])
	}
	var gaps []splice.Tensor
	for i := range r.Outputs {
		out := &r.Outputs[i]
		data, _ := out.Data.Bytes()
		b = appendPrefix(b, 6, len(data))
		if out.Data.Length >= least {
			gaps = append(gaps, splice.Tensor{At: len(b), Data: out.Data})
			continue
		}
		b = append(b, data...)
	}
	return b, gaps
}

// sizeField returns the size of a length-delimited field of n bytes.
func sizeField(num protowire.Number, n int) int {
	return protowire.SizeTag(num) + protowire.SizeBytes(n)
}

// sizeText returns the size of a string field, which is omitted when empty.
func sizeText(num protowire.Number, n int) int {
	if n == 0 {
		return 0
	}
	return sizeField(num, n)
}

func appendPrefix(b []byte, num protowire.Number, n int) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(n))
}

func appendText(b []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return append(appendPrefix(b, num, len(s)), s...)
}

func sizeOutput(out *infer.Tensor) int {
	return sizeText(1, len(out.Name)) + sizeText(2, len(out.Datatype.String())) + sizeText(3, sizeShape(out))
}

func sizeShape(out *infer.Tensor) int {
	n := 0
	for _, d := range out.Shape {
		n += protowire.SizeVarint(uint64(d))
	}
	return n
}

func appendOutput(b []byte, out *infer.Tensor) []byte {
	b = appendPrefix(b, 5, sizeOutput(out))
	b = appendText(b, 1, out.Name)
	b = appendText(b, 2, out.Datatype.String())
	if len(out.Shape) == 0 {
		return b
	}
	b = appendPrefix(b, 3, sizeShape(out))
	for _, d := range out.Shape {
		b = protowire.AppendVarint(b, uint64(d))
	}
	return b
}

// sizeParameter returns the size of a map entry, whose key and value are always written.
func sizeParameter(p *infer.Parameter) (int, error) {
	n, ok := sizeValue(p.Value)
	if !ok {
		return 0, fmt.Errorf("encode response parameter %q: the protocol has no type for %T", p.Key, p.Value)
	}
	return sizeField(1, len(p.Key)) + sizeField(2, n), nil
}

func sizeValue(v any) (int, bool) {
	switch v := v.(type) {
	case bool:
		return 1 + 1, true
	case int64:
		return 1 + protowire.SizeVarint(uint64(v)), true
	case string:
		return sizeField(3, len(v)), true
	case float64:
		return 1 + protowire.SizeFixed64(), true
	}
	return 0, false
}

func appendParameter(b []byte, p *infer.Parameter) []byte {
	n, _ := sizeValue(p.Value)
	b = appendPrefix(b, 4, sizeField(1, len(p.Key))+sizeField(2, n))
	b = append(appendPrefix(b, 1, len(p.Key)), p.Key...)
	b = appendPrefix(b, 2, n)
	switch v := p.Value.(type) {
	case bool:
		b = protowire.AppendTag(b, 1, protowire.VarintType)
		return protowire.AppendVarint(b, protowire.EncodeBool(v))
	case int64:
		b = protowire.AppendTag(b, 2, protowire.VarintType)
		return protowire.AppendVarint(b, uint64(v))
	case string:
		return append(appendPrefix(b, 3, len(v)), v...)
	case float64:
		b = protowire.AppendTag(b, 4, protowire.Fixed64Type)
		return protowire.AppendFixed64(b, math.Float64bits(v))
	}
	return b
}

// StreamItem is the content of a ModelStreamInferResponse: a response, or an error text with a response that
// only names the request.
type StreamItem struct {
	Error string
	Response
}

// Size is like [Response.Size].
func (s *StreamItem) Size() (int, error) {
	n, err := s.Response.Size()
	return sizeText(1, len(s.Error)) + sizeField(2, n), err
}

// Append is like [Response.Append].
func (s *StreamItem) Append(b []byte, least int64) ([]byte, []splice.Tensor) {
	b = appendText(b, 1, s.Error)
	n, _ := s.Response.Size()
	return s.Response.Append(appendPrefix(b, 2, n), least)
}
