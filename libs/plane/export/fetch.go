package export

import (
	"sync"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/shm"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// fetch is an input that is being brought. But for finish its methods are
// called with the destination's mu held.
type fetch struct {
	number uint64
	named  tensor.Ref
	once   sync.Once
	done   func(tensor.Ref, error)
	in     *incoming // nil until the first part
}

// finish returns the outcome, once; bytes that come later are released.
func (f *fetch) finish(local tensor.Ref, err error) {
	first := false
	f.once.Do(func() {
		first = true
		f.done(local, err)
	})
	if !first {
		local.Release()
	}
}

// restart gives up what has come: the stream has ended.
func (f *fetch) restart() {
	if f.in != nil {
		f.in.buffer.Release()
		f.in = nil
	}
}

// read brings the bytes of a slot of the gateway: at once where its memory is
// mapped here, and otherwise when it has sent them, on this stream or the next.
func (d *destination) read(named tensor.Ref, done func(tensor.Ref, error)) (abandon func()) {
	d.mu.Lock()
	if d.ended {
		d.mu.Unlock()
		done(tensor.Ref{}, errStopped())
		return func() {}
	}
	if local, err := d.mapped(named); err == nil {
		d.mu.Unlock()
		done(local, nil)
		return func() {}
	}
	if named.Length > maxArriving {
		d.mu.Unlock()
		done(tensor.Ref{}, errs.New(errs.TransferFailed, "the gateway names an input of %d bytes", named.Length))
		return func() {}
	}
	d.fetched++
	f := &fetch{number: d.fetched, named: named, done: done}
	d.fetches[f.number] = f
	if d.link != nil {
		d.ask(f)
	}
	d.mu.Unlock()
	return func() { d.abandon(f) }
}

// mapped reads a slot where it is. The caller holds mu.
func (d *destination) mapped(named tensor.Ref) (tensor.Ref, error) {
	if d.region == nil || named.Region != shm.Number {
		return tensor.Ref{}, errs.New(errs.TransferFailed, "the gateway's memory is not mapped")
	}
	return d.region.Local(named)
}

// ask sends for the bytes. The caller holds mu; a stream that cannot send ends.
func (d *destination) ask(f *fetch) {
	if err := d.link.Write(func(w *codec.Writer) error { return w.Fetch(f.number, f.named) }); err != nil {
		d.link.Close(err)
	}
}

// abandon ends a fetch that nobody waits for any more.
func (d *destination) abandon(f *fetch) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fetches[f.number] == f {
		delete(d.fetches, f.number)
		f.restart()
	}
}

// chunk takes bytes that were asked for. Those of a fetch that was abandoned
// are dropped.
func (d *destination) chunk(link *link.Link, c codec.Chunk) {
	d.mu.Lock()
	f := d.fetches[c.Number]
	if f == nil || d.link != link {
		d.mu.Unlock()
		return
	}
	local, complete, err := d.add(f, c)
	if complete || err != nil {
		delete(d.fetches, f.number)
	}
	d.mu.Unlock()
	if complete || err != nil {
		f.finish(local, err)
	}
}

// add adds bytes to what has come. The caller holds mu.
func (d *destination) add(f *fetch, c codec.Chunk) (tensor.Ref, bool, error) {
	if c.Err != nil {
		f.restart()
		return tensor.Ref{}, false, c.Err
	}
	if f.in == nil {
		b, err := d.worker.config.Pool.Get(int(f.named.Length))
		if err != nil {
			return tensor.Ref{}, false, err
		}
		f.in = &incoming{buffer: b}
	}
	if err := f.in.add(c); err != nil {
		f.restart()
		return tensor.Ref{}, false, err
	}
	if !f.in.complete() {
		return tensor.Ref{}, false, nil
	}
	return tensor.InBuffer(f.in.buffer, 0, f.named.Length), true, nil
}

// open opens the gateway's memory. Inputs that were asked for meanwhile come as
// bytes.
func (d *destination) open(link *link.Link, m *nereidv1.Region) error {
	region := open(m)
	d.mu.Lock()
	defer d.mu.Unlock()
	if region == nil {
		return nil
	}
	if d.link != link || d.region != nil {
		region.Release()
		return nil
	}
	d.region = region
	return opened(link, m)
}
