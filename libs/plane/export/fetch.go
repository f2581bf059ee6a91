package export

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/shm"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// Fetch brings a tensor that another process holds, or this one, to where it can be
// read: in place where the holder's memory is mapped here, and otherwise by its
// bytes, over the stream with the holder or the next. It calls done once, at once
// or later, from any goroutine, with a local reference that becomes done's or an
// error of the reason transfer_failed, as when the holder is gone or lends the
// tensor no more. After the returned function was called done may still come.
func (e *Endpoint) Fetch(named tensor.Ref, done func(tensor.Ref, error)) (abandon func()) {
	switch {
	case named.Place != tensor.Remote || named.Length > maxArriving:
		done(tensor.Ref{}, errs.New(errs.TransferFailed, "a tensor of %d bytes in place %d cannot be fetched", named.Length, named.Place))
	case named.Holder == e.Identity().Epoch:
		done(e.Exports.find(named))
	default:
		if p := e.peer(named.Holder); p != nil {
			return p.fetch(named, done)
		}
		done(tensor.Ref{}, errStopped())
	}
	return func() {}
}

// fetch is a tensor that is being brought. Who takes it out of the peer's table, with
// mu held, calls done.
type fetch struct {
	number uint64
	named  tensor.Ref
	done   func(tensor.Ref, error)
	on     *stream   // where it was asked for; nil while there is none; guarded by the peer's mu
	in     *incoming // nil until the first part; guarded by the peer's mu
}

// restart gives up what has come. The caller holds the peer's mu.
func (f *fetch) restart() {
	f.on = nil
	if f.in != nil {
		f.in.buffer.Release()
		f.in = nil
	}
}

// fetch brings a tensor that the peer holds.
func (p *peer) fetch(named tensor.Ref, done func(tensor.Ref, error)) (abandon func()) {
	p.mu.Lock()
	if p.ended {
		p.mu.Unlock()
		done(tensor.Ref{}, errStopped())
		return func() {}
	}
	if p.idle != nil && p.dialed != nil {
		p.idle.Reset(p.endpoint.config.Idle)
	}
	if local, ok := p.mapped(named); ok {
		p.mu.Unlock()
		done(local, nil)
		return func() {}
	}
	p.fetched++
	f := &fetch{number: p.fetched, named: named, done: done}
	p.fetches[f.number] = f
	p.ask(f)
	asks := p.asks()
	p.mu.Unlock()
	if asks {
		p.endpoint.config.Reach(p.incarnation)
	}
	return func() { p.abandon(f) }
}

// mapped reads a slot where it is; it is false where that cannot be. The caller
// holds mu.
func (p *peer) mapped(named tensor.Ref) (local tensor.Ref, ok bool) {
	s := p.stream()
	if s == nil || s.region == nil || named.Region != shm.Number {
		return tensor.Ref{}, false
	}
	local, err := s.region.Local(named)
	return local, err == nil
}

// ask sends for the bytes, if there is a stream. The caller holds mu; a stream that
// cannot send ends.
func (p *peer) ask(f *fetch) {
	if f.on = p.stream(); f.on == nil {
		return
	}
	f.on.write(func(w *codec.Writer) error { return w.Fetch(f.number, f.named) })
}

// asks reports whether a stream is to be asked for. The caller holds mu.
func (p *peer) asks() bool {
	return p.stream() == nil && len(p.fetches) > 0 && p.endpoint.config.Reach != nil
}

// abandon ends a fetch that nobody waits for any more.
func (p *peer) abandon(f *fetch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fetches[f.number] == f {
		delete(p.fetches, f.number)
		f.restart()
	}
}

// chunk takes bytes that were asked for. Those of a fetch that was abandoned
// are dropped.
func (p *peer) chunk(s *stream, c codec.Chunk) {
	p.mu.Lock()
	f := p.fetches[c.Number]
	if f == nil || f.on != s {
		p.mu.Unlock()
		return
	}
	p.endpoint.fetched.Add(uint64(c.Len()))
	local, complete, err := p.add(f, c)
	if complete || err != nil {
		delete(p.fetches, f.number)
		f.restart()
	}
	p.mu.Unlock()
	if complete || err != nil {
		f.done(local, err)
	}
}

// add adds bytes to what has come. The caller holds mu.
func (p *peer) add(f *fetch, c codec.Chunk) (local tensor.Ref, complete bool, err error) {
	if c.Err != nil {
		return tensor.Ref{}, false, c.Err
	}
	if f.in == nil {
		b, err := p.endpoint.config.Pool.Get(int(f.named.Length))
		if err != nil {
			return tensor.Ref{}, false, err
		}
		f.in = &incoming{buffer: b}
	}
	if err := f.in.add(c); err != nil || !f.in.complete() {
		return tensor.Ref{}, false, err
	}
	return tensor.InBuffer(f.in.buffer.Retain(), 0, f.named.Length), true, nil
}

// lend sends the bytes that the peer asks for, as far as there is credit. The
// caller holds mu.
func (p *peer) lend(s *stream, number uint64, named tensor.Ref) error {
	held, err := p.endpoint.Exports.find(named)
	if err != nil {
		return s.link.Write(func(w *codec.Writer) error { return w.Unfetched(number, err) })
	}
	s.flow.bulk = append(s.flow.bulk, &transfer{
		data: held,
		part: func(w *codec.Writer, data tensor.Ref) error { return w.Fetched(number, data) },
	})
	return s.flow.pump()
}
