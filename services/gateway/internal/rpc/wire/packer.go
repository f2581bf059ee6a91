package wire

import "github.com/nereid-serving/nereid/libs/tensor"

// alignment of small tensors within their common buffer: that of the widest
// element.
const alignment = 8

// packer puts a request's small tensors side by side into pooled buffers, so
// that a request of two 64-byte inputs takes one buffer and one copy.
type packer struct {
	buffer *tensor.Buffer // the packer holds no reference: the tensors do
	used   int
}

// place returns memory for a tensor of n bytes; expect is the most that may
// still follow in the same message, n included.
func (p *packer) place(pool *tensor.Pool, n, expect int) (tensor.Ref, error) {
	switch {
	case n == 0:
		return tensor.Ref{}, nil
	case n >= tensor.MappedThreshold:
		b, err := pool.Get(n)
		if err != nil {
			return tensor.Ref{}, err
		}
		return tensor.InBuffer(b, 0, int64(n)), nil
	case p.buffer != nil && n <= p.buffer.Len()-p.used:
		return p.take(p.buffer.Retain(), n), nil
	}
	b, err := pool.Get(max(n, min(expect+alignment, tensor.MappedThreshold-1)))
	if err != nil {
		return tensor.Ref{}, err
	}
	p.buffer, p.used = b, 0
	return p.take(b, n), nil
}

func (p *packer) take(b *tensor.Buffer, n int) tensor.Ref {
	at := p.used
	p.used = min((at+n+alignment-1)&^(alignment-1), b.Len())
	return tensor.InBuffer(b, int64(at), int64(n))
}
