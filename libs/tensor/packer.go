package tensor

// alignment of small tensors within their common buffer: that of the widest
// element.
const alignment = 8

// Packer puts the small tensors of one message side by side into pooled
// buffers, so that a request of two 64-byte inputs takes one buffer and one
// copy. It is used for one message while its tensors are held.
type Packer struct {
	buffer *Buffer // the packer holds no reference: the tensors do
	used   int
}

// Place returns memory for a tensor of n bytes; expect is the most that may
// still follow in the same message, n included.
func (p *Packer) Place(pool *Pool, n, expect int) (Ref, error) {
	switch {
	case n == 0:
		return Ref{}, nil
	case n >= MappedThreshold:
		b, err := pool.Get(n)
		if err != nil {
			return Ref{}, err
		}
		return InBuffer(b, 0, int64(n)), nil
	case p.buffer != nil && n <= p.buffer.Len()-p.used:
		return p.take(p.buffer.Retain(), n), nil
	}
	b, err := pool.Get(max(n, min(expect+alignment, MappedThreshold-1)))
	if err != nil {
		return Ref{}, err
	}
	p.buffer, p.used = b, 0
	return p.take(b, n), nil
}

func (p *Packer) take(b *Buffer, n int) Ref {
	at := p.used
	p.used = min((at+n+alignment-1)&^(alignment-1), b.Len())
	return InBuffer(b, int64(at), int64(n))
}
