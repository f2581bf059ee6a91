package export_test

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/export"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// raw is a peer whose every message the test writes and reads.
type raw struct {
	t      testing.TB
	stream grpc.BidiStreamingClient[nereidv1.TensorEnvelope, nereidv1.TensorEnvelope]
	read   []*nereidv1.TensorMessage
	close  func()
}

// newRaw begins a stream with a hello.
func newRaw(t testing.TB, at link.Peer, hello *nereidv1.TensorHello) *raw {
	t.Helper()
	conn, err := link.Connect(at)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := nereidv1.NewTensorServiceClient(conn).Exchange(t.Context(), grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	r := &raw{t: t, stream: stream, close: func() { _ = conn.Close() }} // the only thing to close
	if err := link.SendHello(stream, &nereidv1.TensorMessage{Message: &nereidv1.TensorMessage_Hello{Hello: hello}}); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *raw) send(m *nereidv1.TensorMessage) {
	r.t.Helper()
	if err := link.SendHello(r.stream, m); err != nil {
		r.t.Fatal(err)
	}
}

func (r *raw) give(messages uint32, bytes uint64) {
	r.t.Helper()
	r.send(&nereidv1.TensorMessage{Message: &nereidv1.TensorMessage_Credit{Credit: &nereidv1.Credit{Messages: messages, Bytes: bytes}}})
}

// next returns the next message of a kind that kind accepts.
func (r *raw) next(kind func(*nereidv1.TensorMessage) bool) *nereidv1.TensorMessage {
	r.t.Helper()
	for {
		for len(r.read) > 0 {
			m := r.read[0]
			if r.read = r.read[1:]; kind(m) {
				return m
			}
		}
		envelope, err := r.stream.Recv()
		if err != nil {
			r.t.Fatal(err)
		}
		r.read = envelope.GetMessages()
	}
}

// partBytes is the size of the parts in which large tensors go, and bulkBytes what
// they use of the credit.
const partBytes, windowBytes = 256 << 10, 8 << 20

// A small response waits for no large one: not for its parts that wait for credit,
// and for at most one that is before it.
func TestSmallResponsesPassLargeOnes(t *testing.T) {
	p := newPlane(t, modes()[2])
	p.attach()
	r := newRaw(t, p.peer, &nereidv1.TensorHello{Protocol: link.Protocol, Id: "gateway", Epoch: gatewayEpoch, Stream: 1})
	defer r.close()
	r.give(4096, windowBytes)
	p.at.Respond(&infer.Response{Work: work(1), Final: true, Outputs: []infer.Tensor{p.worker.tensorOf(t, "large", 4*windowBytes)}})
	part := func(m *nereidv1.TensorMessage) bool { return m.GetPart() != nil }
	either := func(m *nereidv1.TensorMessage) bool { return m.GetPart() != nil || m.GetResponse() != nil }
	for range windowBytes / 2 / partBytes { // what parts may use of the credit
		r.next(part)
	}
	for n := range uint64(3) {
		p.at.Respond(&infer.Response{Work: work(2 + n), Final: true, Outputs: []infer.Tensor{p.worker.tensorOf(t, "small", 1<<10)}})
		m := r.next(either)
		if got := m.GetResponse().GetWork().GetRequest().GetNumber(); got != 2+n {
			t.Fatalf("after the parts came the response %d or a part", got)
		}
		r.give(1, partBytes) // one part more
		if m := r.next(either); m.GetPart() == nil {
			t.Fatal("another response came than was sent")
		}
	}
}

// A peer that takes nothing of what it asks for holds up no other.
func TestSlowPeerHoldsUpNoOther(t *testing.T) {
	for _, m := range modes()[1:] {
		t.Run(m.name, func(t *testing.T) {
			l := newLender(t, m, nil)
			defer l.stop()
			in := l.tensorOf(t, "in", 2*windowBytes)
			named, lease := l.Exports.Lend([]infer.Tensor{in}, lenderEpoch)
			slot := named[0].Data
			slow := newRaw(t, l.peer(), &nereidv1.TensorHello{Protocol: link.Protocol, Id: "slow", Epoch: 20, Stream: 1})
			defer slow.close()
			slow.send(&nereidv1.TensorMessage{Message: &nereidv1.TensorMessage_Fetch{Fetch: &nereidv1.Fetch{
				Fetch: 1, Slot: &nereidv1.RemoteSlot{Holder: lenderEpoch, Generation: slot.Generation, Length: uint64(slot.Length)},
			}}})
			slow.give(4096, windowBytes)
			chunk := func(m *nereidv1.TensorMessage) bool { return m.GetFetched() != nil }
			slow.next(chunk)
			a := newAsker(t, m)
			_, stop := a.dial(t, l.peer())
			defer stop()
			wait(t, a.fetch(slot)).check(t, in)
			got := []byte(nil)
			for want := must(in.Data.Bytes())[partBytes:]; len(got) < len(want); { // as it takes, it gets
				slow.give(1, partBytes)
				got = append(got, slow.next(chunk).GetFetched().GetData()...)
			}
			if !bytes.Equal(got, must(in.Data.Bytes())[partBytes:]) {
				t.Error("other bytes have come")
			}
			lease.Release()
			in.Data.Release()
		})
	}
}

// What no peer may send ends the stream that it came on, with what is wrong; fetches of
// others go on.
func TestBrokenPeersEndTheirOwnStreams(t *testing.T) {
	for _, m := range modes()[1:] {
		t.Run(m.name, func(t *testing.T) {
			l := newLender(t, m, nil)
			defer l.stop()
			in := l.tensorOf(t, "in", 1<<20)
			named, lease := l.Exports.Lend([]infer.Tensor{in}, lenderEpoch)
			a := newAsker(t, m)
			over, stop := a.dial(t, l.peer())
			defer stop()
			epoch := uint64(20)
			for name, send := range map[string]func(r *raw) error{
				"bytes that are no message":     func(r *raw) error { return r.bytes([]byte("GET / HTTP/1.1\r\n\r\n")) },
				"a message cut short":           func(r *raw) error { return r.bytes([]byte{1<<3 | 2, 100, 4<<3 | 2}) },
				"a million messages of nothing": func(r *raw) error { return r.bytes(bytes.Repeat([]byte{1<<3 | 2, 0}, 1<<20)) },
				"a second hello": func(r *raw) error {
					return link.SendHello(r.stream, &nereidv1.TensorMessage{Message: &nereidv1.TensorMessage_Hello{Hello: &nereidv1.TensorHello{}}})
				},
				"a response to no request": func(r *raw) error {
					return link.SendHello(r.stream, &nereidv1.TensorMessage{Message: &nereidv1.TensorMessage_Response{Response: &nereidv1.Response{}}})
				},
				"an acknowledgement of what it never got": func(r *raw) error {
					return link.SendHello(r.stream, &nereidv1.TensorMessage{Message: &nereidv1.TensorMessage_Taken{Taken: &nereidv1.Taken{Responses: 1}}})
				},
				"nothing more, with its end of the stream open": func(r *raw) error { return r.stream.CloseSend() },
			} {
				epoch++
				r := newRaw(t, l.peer(), &nereidv1.TensorHello{Protocol: link.Protocol, Id: "broken", Epoch: epoch, Stream: 1})
				if err := send(r); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				err := error(nil)
				for err == nil {
					_, err = r.stream.Recv()
				}
				if reason := errs.Of(link.Cause(err)); reason != errs.PeerMalformed && reason != errs.PeerUnreachable {
					t.Errorf("%s ends the stream by %v", name, err)
				}
				r.close()
				wait(t, a.fetch(named[0].Data)).check(t, in)
			}
			select {
			case err := <-over:
				t.Errorf("the stream of another ended: %v", err)
			default:
			}
			lease.Release()
			in.Data.Release()
		})
	}
}

// bytes sends an envelope of these bytes.
func (r *raw) bytes(b []byte) error { return r.stream.SendMsg(mem.BufferSlice{mem.SliceBuffer(b)}) }

// A fetch that waits asks for a stream when it begins without one, and when the one
// that it was asked on ends.
func TestFetchAsksForAStream(t *testing.T) {
	p := newPlane(t, modes()[1])
	p.attach()
	named := tensor.Ref{Place: tensor.Remote, Holder: gatewayEpoch, Generation: 1, Length: 1 << 20}
	failed := make(chan error, 1)
	p.at.Fetch(named, func(_ tensor.Ref, err error) { failed <- err })
	if of := wait(t, p.asked); of != gatewayEpoch {
		t.Errorf("asked for a stream with %d", of)
	}
	r := newRaw(t, p.peer, &nereidv1.TensorHello{Protocol: link.Protocol, Id: "gateway", Epoch: gatewayEpoch, Stream: 1})
	r.next(func(m *nereidv1.TensorMessage) bool { return m.GetFetch() != nil })
	if len(p.asked) > 0 {
		t.Error("asked for a stream twice")
	}
	r.close()
	if of := wait(t, p.asked); of != gatewayEpoch {
		t.Errorf("asked for the next stream with %d", of)
	}
	p.at.Gone(gatewayEpoch)
	if err := wait(t, failed); errs.Of(err) != errs.TransferFailed {
		t.Errorf("a fetch of a process that is gone: %v", err)
	}
}

// old is a worker of an older protocol.
type old struct {
	nereidv1.UnimplementedTensorServiceServer
}

func (old) Exchange(s grpc.BidiStreamingServer[nereidv1.TensorEnvelope, nereidv1.TensorEnvelope]) error {
	if err := link.ReceiveHello(s, new(nereidv1.TensorHello)); err != nil {
		return err
	}
	return link.SendHello(s, &nereidv1.TensorMessage{Message: &nereidv1.TensorMessage_Hello{Hello: &nereidv1.TensorHello{Id: "old", Protocol: link.Protocol - 1}}})
}

// A peer of an older protocol is refused, whichever side has begun the stream; what
// either says names both protocols.
func TestOlderProtocolsAreRefused(t *testing.T) {
	both := func(err error) bool {
		return errs.Of(err) == errs.PeerProtocol && strings.Contains(err.Error(), fmt.Sprintf("protocol %d", link.Protocol-1)) &&
			strings.Contains(err.Error(), fmt.Sprintf("release %d", link.Protocol))
	}
	m := modes()[1]
	l := newLender(t, m, nil)
	defer l.stop()
	r := newRaw(t, l.peer(), &nereidv1.TensorHello{Protocol: link.Protocol - 1, Id: "old", Epoch: 20, Stream: 1})
	defer r.close()
	if _, err := r.stream.Recv(); !both(link.Cause(err)) {
		t.Errorf("an older process that dials: %v", err)
	}

	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(link.ServerOptions(nil, nil)...)
	nereidv1.RegisterTensorServiceServer(server, old{})
	go func() { _ = server.Serve(listener) }() // ends with Stop
	defer server.Stop()
	a := newAsker(t, m)
	if _, err := a.Dial(t.Context(), link.Peer{Address: listener.Addr().String()}, new(export.Progress)); !both(err) {
		t.Errorf("an older process that is dialed: %v", err)
	}
}

// answering is a worker that gives responses, each when the one before was acknowledged.
type answering struct {
	nereidv1.UnimplementedTensorServiceServer
	acknowledged chan uint64
}

func (a answering) Exchange(s grpc.BidiStreamingServer[nereidv1.TensorEnvelope, nereidv1.TensorEnvelope]) error {
	if err := link.ReceiveHello(s, new(nereidv1.TensorHello)); err != nil {
		return err
	}
	send := func(m *nereidv1.TensorMessage) error { return link.SendHello(s, m) }
	if err := send(&nereidv1.TensorMessage{Message: &nereidv1.TensorMessage_Hello{Hello: &nereidv1.TensorHello{Id: "worker", Protocol: link.Protocol, Epoch: workerEpoch}}}); err != nil {
		return err
	}
	if err := send(&nereidv1.TensorMessage{Message: &nereidv1.TensorMessage_Credit{Credit: &nereidv1.Credit{Messages: 4096, Bytes: windowBytes}}}); err != nil {
		return err
	}
	for n := range uint64(cap(a.acknowledged)) {
		id := &nereidv1.RequestId{Origin: gatewayEpoch, Number: n + 1}
		if err := send(&nereidv1.TensorMessage{Message: &nereidv1.TensorMessage_Response{Response: &nereidv1.Response{Work: &nereidv1.WorkId{Request: id, Attempt: 1}, Final: true}}}); err != nil {
			return err
		}
		for came := false; !came; {
			envelope, err := s.Recv()
			if err != nil {
				return err
			}
			for _, m := range envelope.GetMessages() {
				if taken := m.GetTaken(); taken != nil {
					came = true
					a.acknowledged <- taken.GetResponses()
				}
			}
		}
	}
	<-s.Context().Done()
	return nil
}

// A gateway acknowledges what it got and no more: the worker forgets what is acknowledged.
func TestGatewaysAcknowledgeWhatTheyGot(t *testing.T) {
	p := newPlane(t, modes()[2])
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	worker := answering{acknowledged: make(chan uint64, 2)}
	server := grpc.NewServer(link.ServerOptions(nil, nil)...)
	nereidv1.RegisterTensorServiceServer(server, worker)
	go func() { _ = server.Serve(listener) }() // ends with Stop
	defer server.Stop()
	p.peer = link.Peer{Address: listener.Addr().String()}
	p.connect()
	defer func() { p.stop() }()
	for n := range uint64(cap(worker.acknowledged)) {
		p.answer().Release()
		if got := <-worker.acknowledged; got != n+1 {
			t.Errorf("%d responses are acknowledged of %d", got, n+1)
		}
	}
}
