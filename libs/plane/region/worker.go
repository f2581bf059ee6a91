package region

import (
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/plane/link"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// HandleBytes is the size of a handle: that of cudaIpcMemHandle_t.
const HandleBytes = 64

// maxPart is the most bytes that one message carries.
const maxPart = 1 << 20

// Handle names memory that a client shares.
type Handle struct {
	// Device is the number of its GPU, as the driver counts them.
	Device int32
	// Raw is what the client's CUDA made.
	Raw [HandleBytes]byte
	// Size is how many bytes are shared, from the memory's beginning on.
	Size uint64
}

// Memory is mapped on the worker's GPU. One goroutine uses it at a time.
type Memory interface {
	// Bytes is its size.
	Bytes() uint64
	// Read fills data from an offset on, Write writes it there. Both are within the size.
	Read(data []byte, offset uint64) error
	Write(data []byte, offset uint64) error
	// Close unmaps it.
	Close()
}

// Mapper maps the memory of a handle. Its errors are for the client.
type Mapper func(device int32, raw [HandleBytes]byte) (Memory, error)

// Register has a worker's server, made with [link.ServerOptions], share memory of its GPU.
func Register(s grpc.ServiceRegistrar, m Mapper) {
	nereidv1.RegisterRegionServiceServer(s, &server{mapper: m})
}

type server struct {
	nereidv1.UnimplementedRegionServiceServer
	mapper Mapper
}

// Share implements the call.
func (s *server) Share(stream grpc.BidiStreamingServer[nereidv1.RegionRequest, nereidv1.RegionReply]) error {
	err := s.share(stream)
	if errors.Is(err, io.EOF) { // the gateway shares the region no more
		return nil
	}
	return link.Status(err)
}

// conn is what of a stream the worker uses.
type conn interface {
	Recv() (*nereidv1.RegionRequest, error)
	Send(*nereidv1.RegionReply) error
}

// share serves one region until its stream ends, and returns why it has.
func (s *server) share(c conn) error {
	first, err := c.Recv()
	if err != nil {
		return err
	}
	memory, failure, err := s.open(first.GetOpen())
	if err != nil {
		return err
	}
	if failure != nil {
		return c.Send(&nereidv1.RegionReply{Failure: failure.Error()})
	}
	defer memory.Close()
	reply, copies := new(nereidv1.RegionReply), copier{memory: memory, size: first.GetOpen().GetByteSize()}
	for {
		if err := c.Send(reply); err != nil {
			return err
		}
		next, err := c.Recv()
		if err != nil {
			return err
		}
		if reply, err = copies.answer(next); err != nil {
			return err
		}
	}
}

// copier answers what a gateway asks for once its region is mapped.
type copier struct {
	memory Memory
	size   uint64 // that is shared
	part   []byte // for what is read
}

// answer returns the reply to a request, which is valid until the next; an error is the gateway's.
func (c *copier) answer(request *nereidv1.RegionRequest) (*nereidv1.RegionReply, error) {
	reply, failure := new(nereidv1.RegionReply), error(nil)
	switch r := request.GetRequest().(type) {
	case *nereidv1.RegionRequest_Read:
		n := r.Read.GetByteSize()
		if err := c.check(r.Read.GetOffset(), n); err != nil {
			return nil, err
		}
		if n > uint64(cap(c.part)) {
			c.part = make([]byte, n)
		}
		reply.Data = c.part[:n] // encoded when the reply was sent
		failure = c.memory.Read(reply.Data, r.Read.GetOffset())
	case *nereidv1.RegionRequest_Write:
		if err := c.check(r.Write.GetOffset(), uint64(len(r.Write.GetData()))); err != nil {
			return nil, err
		}
		failure = c.memory.Write(r.Write.GetData(), r.Write.GetOffset())
	default:
		return nil, errs.New(errs.PeerMalformed, "a gateway asks for something else than to read or write a region")
	}
	if failure != nil {
		reply.Data, reply.Failure = nil, failure.Error()
	}
	return reply, nil
}

// open maps a region. A failure is the client's, an error the gateway's.
func (s *server) open(o *nereidv1.RegionOpen) (m Memory, failure, err error) {
	if len(o.GetHandle()) != HandleBytes || o.GetByteSize() == 0 {
		return nil, nil, errs.New(errs.PeerMalformed, "a gateway shares a region of %d bytes by a handle of %d bytes: want more than none, and %d", o.GetByteSize(), len(o.GetHandle()), HandleBytes)
	}
	m, failure = s.mapper(o.GetDevice(), [HandleBytes]byte(o.GetHandle()))
	if failure != nil {
		return nil, failure, nil
	}
	if bytes := m.Bytes(); o.GetByteSize() > bytes {
		m.Close()
		return nil, fmt.Errorf("the memory has %d bytes", bytes), nil
	}
	return m, nil, nil
}

// check refuses a part that lies outside of the region, or is larger than a message's.
func (c *copier) check(offset, n uint64) error {
	if n > maxPart || offset > c.size || n > c.size-offset {
		return errs.New(errs.PeerMalformed, "a gateway asks for %d bytes at %d of a region of %d bytes", n, offset, c.size)
	}
	return nil
}
