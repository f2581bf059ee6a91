package region

import (
	"context"
	"encoding/binary"
	"io"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// messages cuts a text into messages, each behind its length in two bytes. What is none of the
// kind is left out.
func messages[M proto.Message](text []byte, empty func() M) (list []M) {
	for len(text) >= 2 {
		n := min(int(binary.BigEndian.Uint16(text)), len(text)-2)
		m := empty()
		if proto.Unmarshal(text[2:2+n], m) == nil {
			list = append(list, m)
		}
		text = text[2+n:]
	}
	return list
}

func joined[M proto.Message](list ...M) (text []byte) {
	for _, m := range list {
		b, _ := proto.Marshal(m) // it has no texts that are not valid
		text = append(binary.BigEndian.AppendUint16(text, uint16(len(b))), b...)
	}
	return text
}

// script is a stream on which a list of requests comes.
type script struct {
	requests []*nereidv1.RegionRequest
	replies  int
}

func (s *script) Recv() (*nereidv1.RegionRequest, error) {
	if len(s.requests) == 0 {
		return nil, io.EOF
	}
	r := s.requests[0]
	s.requests = s.requests[1:]
	return r, nil
}

func (s *script) Send(*nereidv1.RegionReply) error {
	s.replies++
	return nil
}

// guarded is memory that knows when it is used beyond its shared bytes.
type guarded struct {
	t            *testing.T
	shared       uint64
	open, closed int
}

func (g *guarded) Bytes() uint64 { return 64 }

func (g *guarded) Read(data []byte, offset uint64) error {
	if n := uint64(len(data)); g.closed > 0 || n > maxPart || offset+n < offset || offset+n > min(g.shared, g.Bytes()) {
		g.t.Errorf("%d bytes at %d of %d are used", n, offset, g.shared)
	}
	return nil
}

func (g *guarded) Write(data []byte, offset uint64) error { return g.Read(data, offset) }
func (g *guarded) Close()                                 { g.closed++ }

func opening(size uint64) *nereidv1.RegionRequest {
	return &nereidv1.RegionRequest{Request: &nereidv1.RegionRequest_Open{Open: &nereidv1.RegionOpen{Handle: make([]byte, HandleBytes), ByteSize: size}}}
}

func reading(offset, n uint64) *nereidv1.RegionRequest {
	return &nereidv1.RegionRequest{Request: &nereidv1.RegionRequest_Read{Read: &nereidv1.RegionRead{Offset: offset, ByteSize: n}}}
}

func writing(offset uint64, data string) *nereidv1.RegionRequest {
	return &nereidv1.RegionRequest{Request: &nereidv1.RegionRequest_Write{Write: &nereidv1.RegionWrite{Offset: offset, Data: []byte(data)}}}
}

// Whatever a gateway asks for, memory is used within what it shares, and unmapped once.
func FuzzShare(f *testing.F) {
	f.Add(joined(opening(64), reading(0, 64), writing(60, "abcd")))
	f.Add(joined(opening(10), writing(8, "abc"), reading(0, 1)))
	f.Add(joined(opening(64), reading(1<<64-1, 2)))
	f.Add(joined(opening(65), reading(64, 1)))
	f.Add(joined(reading(0, 1), opening(1)))
	f.Add(joined(opening(0), opening(64)))
	f.Fuzz(func(t *testing.T, text []byte) {
		s := &script{requests: messages(text, func() *nereidv1.RegionRequest { return new(nereidv1.RegionRequest) })}
		asked, memory := len(s.requests), &guarded{t: t}
		if asked > 0 {
			memory.shared = s.requests[0].GetOpen().GetByteSize()
		}
		worker := &server{mapper: func(int32, [HandleBytes]byte) (Memory, error) {
			memory.open++
			return memory, nil
		}}
		if err := worker.share(s); err == nil && s.replies != 1 {
			t.Error("the stream has ended without a cause")
		}
		if memory.closed != memory.open || s.replies > asked {
			t.Errorf("%d mappings, %d unmapped; %d requests, %d replies", memory.open, memory.closed, asked, s.replies)
		}
	})
}

// answering is a gateway's stream on which a list of replies comes.
type answering struct {
	grpc.ClientStream
	replies []*nereidv1.RegionReply
}

func (a *answering) Send(*nereidv1.RegionRequest) error { return nil }

func (a *answering) Recv() (*nereidv1.RegionReply, error) {
	if len(a.replies) == 0 {
		return nil, io.EOF
	}
	r := a.replies[0]
	a.replies = a.replies[1:]
	return r, nil
}

// Whatever a worker answers, what is read has as many bytes as were asked for, or it fails.
func FuzzReplies(f *testing.F) {
	f.Add(joined(&nereidv1.RegionReply{Data: []byte("abcd")}, &nereidv1.RegionReply{}))
	f.Add(joined(&nereidv1.RegionReply{Data: []byte("abc")}))
	f.Add(joined(&nereidv1.RegionReply{Data: []byte("abcde")}))
	f.Add(joined(&nereidv1.RegionReply{Data: []byte("abcd"), Failure: "no"}))
	f.Fuzz(func(t *testing.T, text []byte) {
		replies := messages(text, func() *nereidv1.RegionReply { return new(nereidv1.RegionReply) })
		r := &Region{stream: &answering{replies: replies}, cancel: func() {}, turn: make(chan struct{}, 1)}
		data := make([]byte, 4)
		err := r.Read(context.Background(), data, 0)
		if fine := len(replies) > 0 && len(replies[0].GetData()) == 4 && replies[0].GetFailure() == ""; fine != (err == nil) || fine && string(data) != string(replies[0].GetData()) {
			t.Errorf("%v is read as %q, %v", replies, data, err)
		}
		_ = r.Write(context.Background(), data, 0) // it does not panic
	})
}
