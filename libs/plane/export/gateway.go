package export

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/shm"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Identity is who one end of a stream is.
type Identity struct {
	// ID names the service; Epoch is its incarnation.
	ID    string
	Epoch uint64
	// Release is for logs.
	Release string
}

// Gateway is what the sessions of one gateway share.
type Gateway struct {
	Identity
	// Exports are the inputs that workers may read; Lent are a request's, as they
	// were named, or none once it has ended.
	Exports *Exports
	Lent    func(infer.RequestID) []infer.Tensor
	// Arena is the memory that workers may map; nil is none.
	Arena *shm.Arena
	// Pool is where the outputs go.
	Pool *tensor.Pool
	// Responder gets the responses.
	Responder infer.Responder
}

// Progress is how many responses of one worker's incarnation have been taken.
// It outlives the streams. The zero value is none.
type Progress struct{ taken, streams atomic.Uint64 }

// Session is a gateway's stream to a worker.
type Session struct {
	gateway  *Gateway
	progress *Progress
	worker   Identity
	conn     *grpc.ClientConn
	cancel   context.CancelFunc
	link     *link.Link

	// Owned by the receiving goroutine.
	reader         *codec.Reader
	arriving       arriving
	region         *shm.Region
	intake         intake
	flow           flow
	unacknowledged unacknowledged
}

// unacknowledged is what has been received since the last acknowledgement.
type unacknowledged struct{ responses, bytes int }

// So many responses are acknowledged at once, or so many bytes that the worker keeps
// for them.
const (
	maxUnacknowledgedResponses = 64
	maxUnacknowledgedBytes     = 64 << 10
)

// dialTimeout bounds a try to begin a stream.
const dialTimeout = 5 * time.Second

// Dial begins a stream to the worker at peer, of which p says what was taken
// before. The one before has ended. ctx bounds the beginning alone. The caller
// runs the session.
func (g *Gateway) Dial(ctx context.Context, peer link.Peer, p *Progress) (*Session, error) {
	conn, err := link.Connect(peer)
	if err != nil {
		return nil, err
	}
	s := &Session{gateway: g, progress: p, conn: conn, reader: codec.NewReader(g.Pool), arriving: arriving{pool: g.Pool}}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	ctx, done := context.WithTimeout(ctx, dialTimeout)
	defer done()
	unhook := context.AfterFunc(ctx, cancel)
	err = s.greet(life)
	if !unhook() {
		err = context.Cause(ctx)
	}
	if err != nil {
		cancel()
		_ = conn.Close() // the cause is err
		return nil, err
	}
	return s, nil
}

func (s *Session) greet(ctx context.Context) error {
	exchange, err := nereidv1.NewTensorServiceClient(s.conn).Exchange(ctx)
	if err != nil {
		return err
	}
	mine := hello(s.gateway.Identity)
	mine.Taken, mine.Stream = s.progress.taken.Load(), s.progress.streams.Add(1)
	if err := link.SendHello(exchange, &nereidv1.TensorMessage{Message: &nereidv1.TensorMessage_Hello{Hello: mine}}); err != nil {
		return err
	}
	theirs := new(nereidv1.TensorHello)
	if err := link.ReceiveHello(exchange, theirs); err != nil {
		return err
	}
	if err := link.CheckProtocol(theirs.GetId(), theirs.GetProtocol()); err != nil {
		return err
	}
	s.worker = Identity{ID: theirs.GetId(), Epoch: theirs.GetEpoch(), Release: theirs.GetRelease()}
	s.link = link.New(exchange)
	s.intake.link, s.flow.link = s.link, s.link
	if err := s.intake.begin(); err != nil {
		return err
	}
	return announce(s.link, s.gateway.Arena)
}

// Worker is the peer.
func (s *Session) Worker() Identity { return s.worker }

// Run takes responses and serves inputs until the stream ends or ctx is done,
// and returns the cause.
func (s *Session) Run(ctx context.Context) error {
	err := s.link.Run(ctx, s.receive)
	s.cancel()
	_ = s.conn.Close() // the stream has ended
	s.flow.end()
	s.arriving.release()
	if s.region != nil {
		s.region.Release()
	}
	return err
}

func (s *Session) receive(envelope mem.BufferSlice) error { return s.reader.Each(envelope, s.message) }

// message takes one message.
func (s *Session) message(member protowire.Number, b codec.Body) error {
	switch member {
	case codec.ExchangeResponse:
		r, _, err := s.reader.Response(b)
		if err != nil {
			return err
		}
		return s.take(r)
	case codec.ExchangePart:
		chunk, err := s.reader.Part(b)
		if err != nil {
			return err
		}
		n := chunk.Len()
		if err := s.arriving.part(chunk); err != nil {
			return err
		}
		return s.intake.took(n)
	case codec.ExchangeFetch:
		number, named, err := s.reader.Fetch(b)
		if err != nil {
			return err
		}
		return s.serve(number, named)
	case codec.ExchangeCredit:
		credit, err := s.reader.Credit(b)
		if err != nil {
			return err
		}
		return s.flow.credit(credit)
	case codec.ExchangeRegion:
		m := new(nereidv1.Region)
		if err := s.reader.Message(b, m); err != nil {
			return err
		}
		return s.share(m)
	case codec.ExchangeOpened:
		return nil
	}
	return errs.New(errs.PeerMalformed, "worker %s sent a message that a gateway does not take", s.worker.ID)
}

// share maps the worker's memory, if that can be.
func (s *Session) share(m *nereidv1.Region) error {
	if s.region != nil {
		return nil
	}
	if s.region = open(m); s.region == nil {
		return nil
	}
	return opened(s.link, m)
}

// take copies what a response names and hands it on.
func (s *Session) take(r *infer.Response) error {
	carried, size := codec.InlineBytes(r.Outputs), keptBytes(r)
	var failed error
	for i := range r.Outputs { // all, or what came of the others would wait for the stream's end
		local, err := s.output(r.Work.Request, r.Outputs[i].Data)
		r.Outputs[i].Data, failed = local, cmp.Or(failed, err)
	}
	if failed != nil {
		r.Release()
		r = infer.Fail(r.Work, errs.Wrap(errs.TransferFailed, failed, "an output did not reach the gateway: %v", failed))
	}
	s.gateway.Responder.Respond(r)
	if err := s.acknowledge(size); err != nil {
		return err
	}
	return s.intake.took(int(carried))
}

// keptBytes is what a worker keeps for a response: not what it names of an input.
func keptBytes(r *infer.Response) int64 {
	n := int64(0)
	for i := range r.Outputs {
		if data := &r.Outputs[i].Data; data.Holder == 0 {
			n += data.Length
		}
	}
	return n
}

// acknowledge counts one more response as received, whose outputs
// have so many bytes. While the worker keeps little for them, the message can wait.
func (s *Session) acknowledge(size int64) error {
	taken := s.progress.taken.Add(1)
	write := s.link.WriteLater
	s.unacknowledged.responses++
	s.unacknowledged.bytes += int(min(size, maxUnacknowledgedBytes))
	if s.unacknowledged.responses >= maxUnacknowledgedResponses || s.unacknowledged.bytes >= maxUnacknowledgedBytes {
		s.unacknowledged, write = unacknowledged{}, s.link.Write
	}
	return write(func(w *codec.Writer) error { return w.Taken(taken) })
}

// output returns a local reference to an output's bytes. What the worker names
// of an input is that input. What lies in the worker's memory is copied: the
// worker may reuse it when the stream ends, in the middle of an answer to a
// client.
func (s *Session) output(of infer.RequestID, named tensor.Ref) (tensor.Ref, error) {
	switch named.Place {
	case tensor.Arena:
		if s.region == nil {
			return tensor.Ref{}, errs.New(errs.Bug, "the worker names memory that was not opened")
		}
		return copied(s.region, named, s.gateway.Pool)
	case tensor.Remote:
		if named.Holder == 0 {
			return s.arriving.take(named)
		}
		local, ok := s.gateway.Exports.part(s.gateway.Lent(of), named)
		if !ok {
			return tensor.Ref{}, errs.New(errs.TransferFailed, "the worker answered with an input that the gateway has no more")
		}
		return local, nil
	}
	return named, nil
}

// copied copies a slot's bytes into memory of the pool.
func copied(region *shm.Region, named tensor.Ref, pool *tensor.Pool) (tensor.Ref, error) {
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

// serve sends the bytes that the worker asks for, as far as there is credit.
func (s *Session) serve(number uint64, named tensor.Ref) error {
	held, ok := s.gateway.Exports.find(named)
	if !ok {
		gone := errs.New(errs.TransferFailed, "the gateway has the input no more")
		return s.link.Write(func(w *codec.Writer) error { return w.Unfetched(number, gone) })
	}
	s.flow.bulk = append(s.flow.bulk, &transfer{
		data: held,
		part: func(w *codec.Writer, data tensor.Ref) error { return w.Fetched(number, data) },
	})
	return s.flow.pump()
}
