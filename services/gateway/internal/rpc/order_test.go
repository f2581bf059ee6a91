package rpc_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nereid-serving/nereid/libs/infer"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// open opens a call of ModelInfer, whose message comes later. Calls of one goroutine
// are opened in their order, as a generated client's need not be.
func (s *server) open(ctx context.Context, options ...grpc.CallOption) grpc.ClientStream {
	s.t.Helper()
	stream, err := s.conn.NewStream(ctx, &grpc.StreamDesc{StreamName: "ModelInfer"}, inference.GRPCInferenceService_ModelInfer_FullMethodName, options...)
	if err != nil {
		s.t.Fatal(err)
	}
	return stream
}

func (s *server) send(stream grpc.ClientStream, m *inference.ModelInferRequest) {
	s.t.Helper()
	if err := stream.SendMsg(m); err != nil {
		s.t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) sent(m *inference.ModelInferRequest) grpc.ClientStream {
	s.t.Helper()
	stream := s.open(s.t.Context())
	s.send(stream, m)
	return stream
}

// ofSequence is a request whose ID says its sequence and its place there.
func ofSequence(sequence, n, rows int) *inference.ModelInferRequest {
	m := addSub(rows)
	m.Id = fmt.Sprintf("%d:%d", sequence, n)
	m.Parameters = map[string]*inference.InferParameter{
		"sequence_id": {ParameterChoice: &inference.InferParameter_StringParam{StringParam: strconv.Itoa(sequence)}},
	}
	return m
}

// A client may send the requests of a sequence without waiting. Each has a goroutine,
// and they reach the scheduler, with growing numbers, as they were sent.
func TestSequencesAreSubmittedAsTheyWereSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // where no message is late
		const sequences, rounds, requests = 5, 6, 40
		s := serve(t)
		next, last := make([]int, sequences), make([]infer.RequestID, sequences)
		for range rounds {
			var streams []grpc.ClientStream
			for n := range requests * sequences {
				streams = append(streams, s.sent(ofSequence(n%sequences, next[n%sequences]+n/sequences, 1+n%7*20)))
				if n%3 == 0 {
					streams = append(streams, s.sent(addSub(1)))
				}
			}
			for _, stream := range streams {
				if err := stream.RecvMsg(new(inference.ModelInferResponse)); err != nil {
					t.Fatal(err)
				}
				r := <-s.models.submitted
				if r.Sequence.Key == "" {
					continue
				}
				sequence, _ := strconv.Atoi(r.Sequence.Key)
				if want := fmt.Sprintf("%d:%d", sequence, next[sequence]); r.ID != want {
					t.Fatalf("%s was submitted when %s was next", r.ID, want)
				}
				if r.Work.Request.Number <= last[sequence].Number {
					t.Fatalf("%s has the number %d after %d", r.ID, r.Work.Request.Number, last[sequence].Number)
				}
				next[sequence]++
				last[sequence] = r.Work.Request
			}
		}
	})
}

// submissions lists the IDs of what was submitted since the last call.
func (s *server) submissions() string {
	synctest.Wait()
	var ids []string
	for {
		select {
		case r := <-s.models.submitted:
			ids = append(ids, r.ID)
			continue
		default:
		}
		return strings.Join(ids, " ")
	}
}

func (s *server) expect(what, want string) {
	s.t.Helper()
	if got := s.submissions(); got != want {
		s.t.Errorf("%s: %q was submitted, want %q", what, got, want)
	}
}

// Others wait for a message that does not come for a second, once, and only if they are of a sequence.
func TestCallWithoutMessageHoldsUpNobodyForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		silent := s.open(t.Context())
		s.sent(ofSequence(1, 1, 1))
		s.sent(ofSequence(1, 2, 1))
		s.sent(addSub(1))
		s.expect("before a second", "r1")
		<-time.After(time.Second)
		s.expect("after a second", "1:1 1:2")
		s.sent(ofSequence(1, 3, 1))
		s.expect("while the call is still open", "1:3")
		s.send(silent, ofSequence(1, 0, 1))
		s.expect("with its message", "1:0")
	})
}

// Those whose messages have come keep their order, although one of them has waited
// for long and another has not.
func TestOrderOutlivesAMessageThatIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.open(t.Context())
		second := s.open(t.Context())
		s.sent(ofSequence(1, 2, 1))
		synctest.Wait()
		<-time.After(900 * time.Millisecond)
		s.send(second, ofSequence(1, 1, 1))
		s.expect("before a second", "")
		<-time.After(100 * time.Millisecond)
		s.expect("after a second", "1:1 1:2")
	})
}

func TestCallThatEndsHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		ctx, cancel := context.WithCancel(t.Context())
		s.open(ctx)
		waiting, leave := context.WithCancel(t.Context())
		canceled := s.open(waiting)
		s.send(canceled, ofSequence(1, 1, 1))
		s.sent(ofSequence(1, 2, 1))
		s.expect("before", "")
		leave()
		s.expect("when one that waits is canceled", "")
		cancel()
		s.expect("when what it waits for is canceled", "1:2")
		if err := canceled.RecvMsg(new(inference.ModelInferResponse)); status.Code(err) != codes.Canceled {
			t.Errorf("the canceled call ends with %v", err)
		}
		short, end := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer end()
		s.open(short)
		s.sent(ofSequence(1, 3, 1))
		s.expect("before the deadline", "")
		<-time.After(500 * time.Millisecond)
		s.expect("after the deadline", "1:3")
	})
}

// gRPC refuses a message in a format that it does not know before there is a handler.
func TestCallWithoutHandlerHoldsUpNobody(t *testing.T) {
	const method = inference.GRPCInferenceService_ModelInfer_FullMethodName
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		deaf := s.dialRaw(t, 0)
		deaf.format = "unknown"
		for range 3 {
			deaf.call(method, false, addSub(1))
		}
		deaf.format = ""
		deaf.call(method, false, ofSequence(1, 1, 1))
		s.expect("after calls without a handler", "1:1")
		_ = deaf.conn.Close()
		synctest.Wait()
	})
}
