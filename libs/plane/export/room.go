package export

import (
	"math"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/codec"
)

// awaited is a response that was given to a gateway and whose release there is
// awaited.
type awaited struct {
	index   uint32 // of the response
	release func()
}

// await keeps what is to be called when the gateway's client has a response. The
// last response ends that of all.
func (b *outbox) await(r *infer.Response) {
	number := r.Work.Request.Number
	switch {
	case r.Final:
		b.room(number, math.MaxUint32)
	case r.OnRelease != nil:
		if b.awaited == nil {
			b.awaited = make(map[uint64][]awaited)
		}
		b.awaited[number] = append(b.awaited[number], awaited{r.Index, r.OnRelease})
		r.OnRelease, r.Awaited = nil, true
	}
}

// room takes in that so many responses to a request are released at the gateway.
func (b *outbox) room(number uint64, responses uint32) {
	list := b.awaited[number]
	for len(list) > 0 && list[0].index < responses {
		list[0].release()
		list[0] = awaited{}
		list = list[1:]
	}
	if len(list) > 0 {
		b.awaited[number] = list
	} else {
		delete(b.awaited, number)
	}
}

// releaseAwaited ends all waiting: nobody tells of releases any more.
func (b *outbox) releaseAwaited() {
	for number := range b.awaited {
		b.room(number, math.MaxUint32)
	}
}

// watch has the peer told when a response of its that it awaits is released. It
// is called before anybody may release the response.
func (p *peer) watch(r *infer.Response) {
	id, count := r.Work.Request, r.Index+1
	switch {
	case r.Final && (r.Index > 0 || r.Err != nil): // else it is the only one
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.released, id)
	case r.Awaited && !r.Final:
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.released == nil {
			p.released = make(map[infer.RequestID]uint32)
		}
		p.released[id] += 0 // is open
		r.OnRelease = func() { p.tellRelease(id, count) }
	}
}

// tellRelease tells the peer that so many responses to a request are released,
// unless it has given the last or was told of more.
func (p *peer) tellRelease(id infer.RequestID, responses uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before, open := p.released[id]
	if !open || responses <= before {
		return
	}
	p.released[id] = responses
	if p.dialed != nil {
		p.dialed.room(id, responses)
	}
}

// tellReleases tells the peer what it may have missed with the stream before. The
// caller holds mu.
func (p *peer) tellReleases() {
	for id, responses := range p.released {
		if responses > 0 {
			p.dialed.room(id, responses)
		}
	}
}

// room sends a Room.
func (s *stream) room(id infer.RequestID, responses uint32) {
	s.write(func(w *codec.Writer) error { return w.Room(id.Number, responses) })
}
