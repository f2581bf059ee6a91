package region

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/plane/link"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// RefusedError is what the worker, or CUDA there, says of a handle or a copy. The region stays
// as it is.
type RefusedError struct{ Text string }

func (e *RefusedError) Error() string { return e.Text }

// Region is a region that a worker has mapped, as a gateway uses it. It is safe for concurrent
// use: copies take turns, a part of at most 1 MiB each.
//
// Errors are a *[RefusedError]; an *errs.Error where the stream has ended, as with the
// worker's process, after which there is nothing to use; or the context's cause, which ends
// the stream where a copy was under way.
type Region struct {
	connection *grpc.ClientConn
	stream     grpc.BidiStreamingClient[nereidv1.RegionRequest, nereidv1.RegionReply]
	cancel     context.CancelFunc
	turn       chan struct{} // of one place, which the copy under way takes
	over       error         // why the stream has ended; whose turn it is has it
}

// openTimeout bounds how long a worker may take to map a region.
const openTimeout = 10 * time.Second

// Open has the worker at an address map a region. The caller closes it.
func Open(ctx context.Context, at link.Peer, h Handle) (*Region, error) {
	connection, err := link.Connect(at)
	if err != nil {
		return nil, link.Cause(err)
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &Region{connection: connection, cancel: cancel, turn: make(chan struct{}, 1)}
	ctx, done := context.WithTimeoutCause(ctx, openTimeout, errs.New(errs.PeerUnreachable, "the worker has not mapped the region for %v", openTimeout))
	defer done()
	stop := context.AfterFunc(ctx, cancel)
	r.stream, err = nereidv1.NewRegionServiceClient(connection).Share(life)
	if !stop() {
		err = context.Cause(ctx)
	} else if err != nil {
		err = link.Cause(err)
	}
	if err == nil {
		_, err = r.ask(ctx, &nereidv1.RegionRequest{Request: &nereidv1.RegionRequest_Open{
			Open: &nereidv1.RegionOpen{Device: h.Device, Handle: h.Raw[:], ByteSize: h.Size},
		}})
	}
	if err != nil {
		r.drop()
		return nil, err
	}
	return r, nil
}

// Read fills data with the region's bytes from offset on, which it has.
func (r *Region) Read(ctx context.Context, data []byte, offset uint64) error {
	for len(data) > 0 {
		n := min(len(data), maxPart)
		part, err := r.ask(ctx, &nereidv1.RegionRequest{Request: &nereidv1.RegionRequest_Read{
			Read: &nereidv1.RegionRead{Offset: offset, ByteSize: uint64(n)},
		}})
		if err != nil {
			return err
		}
		if len(part) != n {
			r.cancel() // no reply of this worker can be trusted
			return errs.New(errs.PeerMalformed, "a worker has sent %d bytes of a region for %d", len(part), n)
		}
		copy(data, part)
		data, offset = data[n:], offset+uint64(n)
	}
	return nil
}

// Write writes data into the region from offset on, where it has as many bytes.
func (r *Region) Write(ctx context.Context, data []byte, offset uint64) error {
	for len(data) > 0 {
		n := min(len(data), maxPart)
		if _, err := r.ask(ctx, &nereidv1.RegionRequest{Request: &nereidv1.RegionRequest_Write{
			Write: &nereidv1.RegionWrite{Offset: offset, Data: data[:n]},
		}}); err != nil {
			return err
		}
		data, offset = data[n:], offset+uint64(n)
	}
	return nil
}

// ask makes one request and returns the data of its reply.
func (r *Region) ask(ctx context.Context, request *nereidv1.RegionRequest) ([]byte, error) {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-r.turn }()
	if r.over != nil {
		return nil, r.over
	}
	stop := context.AfterFunc(ctx, r.cancel) // else the reply would be taken for that of the next
	_ = r.stream.Send(request)               // where it fails, Recv says why
	reply, err := r.stream.Recv()
	if !stop() {
		r.over = errs.New(errs.PeerUnreachable, "the stream was given up with a copy that nobody waited for")
		return nil, context.Cause(ctx)
	}
	if err != nil {
		r.over = link.Cause(err)
		return nil, r.over
	}
	if text := reply.GetFailure(); text != "" {
		return nil, &RefusedError{Text: text}
	}
	return reply.GetData(), nil
}

// Close ends the stream, and returns when the worker has unmapped the region, cannot be
// reached, or ctx is done: then the worker unmaps it once it sees the end.
func (r *Region) Close(ctx context.Context) {
	defer r.drop()
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-r.turn }()
	if r.over != nil {
		return
	}
	r.over = errs.New(errs.PeerUnreachable, "the region is shared no more")
	defer context.AfterFunc(ctx, r.cancel)()
	if err := r.stream.CloseSend(); err == nil {
		_, _ = r.stream.Recv() // the end
	}
}

// drop gives the connection up.
func (r *Region) drop() {
	r.cancel()
	_ = r.connection.Close() // fails only where it is closed
}
