package export

import (
	"cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/shm"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// unacknowledged counts what has been received since the last acknowledgement.
type unacknowledged struct{ responses, bytes int }

// Responses are acknowledged once there are this many, or the worker retains this many bytes for them.
const (
	maxUnacknowledgedResponses = 64
	maxUnacknowledgedBytes     = 64 << 10
)

// brings reports whether the peer may send responses on a stream: only a worker may, to the gateway that has opened
// the stream.
func (p *peer) brings(s *stream) bool { return s.progress != nil && p.endpoint.config.Responder != nil }

// part handles a part of an output.
func (p *peer) part(s *stream, c codec.Chunk) error {
	if !p.brings(s) {
		return errs.New(errs.PeerMalformed, "the peer sent a part of an output to a process that has made no request")
	}
	n := c.Len()
	if err := s.arriving.part(c); err != nil {
		return err
	}
	return s.intake.took(n)
}

// take copies what a response refers to and passes it on.
func (p *peer) take(s *stream, r *infer.Response) error {
	if !p.brings(s) {
		r.Release()
		return errs.New(errs.PeerMalformed, "the peer sent a response to a process that has made no request")
	}
	carried, size := infer.LocalBytes(r.Outputs), keptBytes(r)
	p.watch(r)
	p.hold(r)
	var failed error
	for i := range r.Outputs { // all of them: otherwise parts of the others would wait for the stream's end
		local, err := p.output(s, r, r.Outputs[i].Data)
		r.Outputs[i].Data, failed = local, cmp.Or(failed, err)
	}
	if failed != nil {
		r.Release()
		r = infer.Fail(r.Work, errs.Wrap(errs.TransferFailed, failed, "an output did not reach the gateway: %v", failed))
	}
	p.endpoint.config.Responder.Respond(r)
	if err := s.acknowledge(size); err != nil {
		return err
	}
	return s.intake.took(int(carried))
}

// keptBytes returns how many bytes a worker retains for a response, excluding references to inputs.
func keptBytes(r *infer.Response) int64 {
	n := int64(0)
	for i := range r.Outputs {
		if data := &r.Outputs[i].Data; data.Holder == 0 {
			n += data.Length
		}
	}
	return n
}

// acknowledge counts one more response as received, whose outputs have the given size. As long as the worker retains
// little for them, the message can wait.
func (s *stream) acknowledge(size int64) error {
	taken := s.progress.taken.Add(1)
	write := s.link.WriteLater
	s.unacknowledged.responses++
	s.unacknowledged.bytes += int(min(size, maxUnacknowledgedBytes))
	if s.unacknowledged.responses >= maxUnacknowledgedResponses || s.unacknowledged.bytes >= maxUnacknowledgedBytes {
		s.unacknowledged, write = unacknowledged{}, s.link.Write
	}
	return write(func(w *codec.Writer) error { return w.Taken(taken) })
}

// output returns a local reference to an output's bytes. If the output refers to an input, that is the input. Bytes
// in the worker's memory are copied: the worker may reuse them when the stream ends, in the middle of an answer to a
// client. Outputs that the worker retains stay there.
func (p *peer) output(s *stream, of *infer.Response, named tensor.Ref) (tensor.Ref, error) {
	switch {
	case named.Place == tensor.Remote && named.Holder == p.incarnation && of.Kept != 0:
		return named, nil
	case named.Place == tensor.Remote && named.Holder == p.incarnation:
		return tensor.Ref{}, errNotKept
	case named.Place == tensor.Arena && s.region == nil:
		return tensor.Ref{}, errs.New(errs.Bug, "the worker names memory that was not opened")
	case named.Place == tensor.Arena:
		return copied(s.region, named, p.endpoint.config.Pool)
	case named.Place == tensor.Remote && named.Holder == 0:
		return s.arriving.take(named)
	case named.Place == tensor.Remote:
		return p.endpoint.Exports.part(p.endpoint.config.Lent(of.Work.Request), named)
	}
	return named, nil
}

// slots is memory of another process, which may reuse a slot at any time: a [shm.Region].
type slots interface {
	Local(named tensor.Ref) (tensor.Ref, error)
	Current(named tensor.Ref) bool
}

// copied copies a slot's bytes into memory of the pool.
func copied(region slots, named tensor.Ref, pool *tensor.Pool) (tensor.Ref, error) {
	there, err := region.Local(named)
	if err != nil {
		return tensor.Ref{}, err
	}
	defer there.Release()
	b, err := pool.Get(int(named.Length))
	if err != nil {
		return tensor.Ref{}, err
	}
	data, err := there.Bytes()
	copy(b.Bytes(), data)
	local := tensor.InBuffer(b, 0, named.Length)
	if err == nil && !region.Current(named) {
		err = shm.ErrReused
	}
	if err != nil {
		local.Release()
	}
	return local, err
}
