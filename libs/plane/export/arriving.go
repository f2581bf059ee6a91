package export

import (
	"maps"
	"slices"
	"sync/atomic"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// maxArriving bounds a tensor that a peer says it will send, so that a broken
// one does not take all memory.
const maxArriving = 1 << 40

// arriving are outputs whose parts come ahead of their responses. It is owned
// by the goroutine that receives, but for since.
type arriving struct {
	pool  *tensor.Pool
	clock mono.Clock
	parts map[uint64]*incoming
	since atomic.Int64 // when the first of those began that are not complete; 0 is none
}

// incoming is a tensor of which parts have come.
type incoming struct {
	buffer *tensor.Buffer
	have   int
	began  mono.Time
}

// add takes the next bytes.
func (in *incoming) add(c codec.Chunk) error {
	if c.Len() > in.buffer.Len()-in.have {
		return errs.New(errs.PeerMalformed, "the peer sent more than the %d bytes of a tensor", in.buffer.Len())
	}
	n := c.Len()
	c.CopyTo(in.buffer.Bytes()[in.have : in.have+n])
	in.have += n
	return nil
}

func (in *incoming) complete() bool { return in.have == in.buffer.Len() }

// part takes a part of an output.
func (a *arriving) part(c codec.Chunk) error {
	in := a.parts[c.Number]
	if in == nil {
		if c.Size > maxArriving {
			return errs.New(errs.PeerMalformed, "the peer announced a tensor of %d bytes", c.Size)
		}
		b, err := a.pool.Get(int(c.Size))
		if err != nil {
			return err
		}
		in = &incoming{buffer: b, began: a.clock.Now()}
		if a.parts == nil {
			a.parts = make(map[uint64]*incoming)
		}
		a.parts[c.Number] = in
	}
	err := in.add(c)
	if in.have == c.Len() || in.complete() { // its first part, or its last
		a.noteSince()
	}
	return err
}

// noteSince records which of the outputs is longest on its way.
func (a *arriving) noteSince() {
	first := mono.Time(0)
	for _, in := range a.parts {
		if !in.complete() {
			first = mono.Earliest(first, in.began)
		}
	}
	a.since.Store(int64(first))
}

// take hands out the output that a response names.
func (a *arriving) take(named tensor.Ref) (tensor.Ref, error) {
	in := a.parts[named.Generation]
	if in == nil || named.Region != 0 || !in.complete() || named.Length != int64(in.have) {
		return tensor.Ref{}, errs.New(errs.PeerMalformed, "the response names an output that did not come before it")
	}
	delete(a.parts, named.Generation)
	return tensor.InBuffer(in.buffer, 0, named.Length), nil
}

// release gives up what no response has named.
func (a *arriving) release() {
	for number, in := range a.parts {
		in.buffer.Release()
		delete(a.parts, number)
	}
}

// Arriving reports whether a large output is on its way from a process whose first part
// came at or before the given time; 0 is any process. While it is, the stream makes
// progress or ends.
func (e *Endpoint) Arriving(incarnation uint64, since mono.Time) bool {
	e.mu.Lock()
	peers := slices.Collect(maps.Values(e.peers))
	e.mu.Unlock()
	return slices.ContainsFunc(peers, func(p *peer) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.dialed == nil || incarnation != 0 && incarnation != p.incarnation {
			return false
		}
		first := mono.Time(p.dialed.arriving.since.Load())
		return first != 0 && first <= since
	})
}
