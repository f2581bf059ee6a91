package export

import (
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/shm"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// stream is one stream with a peer.
type stream struct {
	link *link.Link

	// Owned by the receiving goroutine.
	reader         *codec.Reader
	intake         intake
	arriving       arriving
	progress       *Progress // nil on the side that sends the responses
	unacknowledged unacknowledged

	// Guarded by the peer's mu. The receiving goroutine, which alone sets the region,
	// reads it without.
	flow   flow
	region *shm.Region // the peer's, nil if it cannot be mapped
	opened bool        // the peer reads this process's arena
	calls  calls
}

// newStream makes a stream over one whose hellos were exchanged, and gives the
// peer what comes first: credit, and the arena.
func (e *Endpoint) newStream(conn link.Conn) (*stream, error) {
	l := link.New(conn)
	s := &stream{
		link: l, reader: codec.NewReader(e.config.Pool), intake: intake{link: l},
		arriving: arriving{pool: e.config.Pool, clock: e.config.Clock}, flow: flow{link: l}, calls: newCalls(),
	}
	if err := s.intake.begin(); err != nil {
		return nil, err
	}
	return s, s.announce(e.config.Arena)
}

// announce makes an arena known to the peer.
func (s *stream) announce(arena *shm.Arena) error {
	if arena == nil {
		return nil
	}
	a := arena.Announcement()
	m := &nereidv1.Region{Region: shm.Number, Path: a.Path, ByteSize: uint64(a.Size), Mark: a.Mark}
	return s.link.Write(func(w *codec.Writer) error { return w.Message(codec.ExchangeRegion, m) })
}

// tellOpened tells the peer that its region is read here.
func (s *stream) tellOpened() error {
	m := &nereidv1.Opened{Region: shm.Number}
	return s.link.Write(func(w *codec.Writer) error { return w.Message(codec.ExchangeOpened, m) })
}

// write sends a message that the next stream makes good where it is lost. A stream that
// cannot send ends.
func (s *stream) write(message func(*codec.Writer) error) {
	if err := s.link.Write(message); err != nil {
		s.link.Close(err)
	}
}

// release gives up what the stream has brought. It has ended.
func (s *stream) release() {
	s.arriving.release()
	if s.region != nil {
		s.region.Release()
	}
}

// open maps a peer's memory; nil where it cannot be mapped, as between hosts.
func open(m *nereidv1.Region) *shm.Region {
	if m.GetRegion() != shm.Number {
		return nil
	}
	region, err := shm.Open(shm.Announcement{Path: m.GetPath(), Size: int64(m.GetByteSize()), Mark: m.GetMark()})
	if err != nil {
		return nil // the peer sends bytes
	}
	return region
}
