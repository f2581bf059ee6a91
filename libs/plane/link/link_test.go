package link_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pipe is one end of a stream in memory. A full one blocks, as gRPC does.
type pipe struct {
	out, in chan []byte
	over    chan struct{}
	once    *sync.Once
}

func pipes() (near, far *pipe) {
	a, b, over, once := make(chan []byte, 1), make(chan []byte, 1), make(chan struct{}), new(sync.Once)
	return &pipe{a, b, over, once}, &pipe{b, a, over, once}
}

func (p *pipe) end() { p.once.Do(func() { close(p.over) }) }

func (p *pipe) SendMsg(m any) error {
	envelope, _ := m.(mem.BufferSlice)
	data := envelope.Materialize()
	envelope.Free()
	select {
	case p.out <- data:
		return nil
	case <-p.over:
		return io.EOF
	}
}

func (p *pipe) RecvMsg(m any) error {
	select {
	case data := <-p.in:
		*m.(*mem.BufferSlice) = mem.BufferSlice{mem.SliceBuffer(data)}
		return nil
	case <-p.over:
		return io.EOF
	}
}

// run runs a link over a pipe until its end.
func run(p *pipe, receive func(mem.BufferSlice) error) (*link.Link, <-chan error) {
	l, ended := link.New(p), make(chan error, 1)
	go func() {
		ended <- l.Run(context.Background(), receive)
		p.end()
	}()
	return l, ended
}

func ignore(mem.BufferSlice) error { return nil }

func write(t *testing.T, l *link.Link, attempt uint32) {
	t.Helper()
	if err := l.Write(func(w *codec.Writer) error { return w.Placed(infer.Work{Attempt: attempt}, 1) }); err != nil {
		t.Fatal(err)
	}
}

func TestWhatIsReadyTogetherGoesTogetherAndInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := pipes()
		var sizes, got []uint32
		r := codec.NewReader(tensor.NewPool(0))
		sender, ended := run(near, ignore)
		for n := range uint32(2) {
			write(t, sender, n)
			synctest.Wait() // the first is in the pipe, the second on its way
		}
		for n := uint32(2); n < 50; n++ {
			write(t, sender, n)
		}
		_, _ = run(far, func(envelope mem.BufferSlice) error {
			before := len(got)
			err := r.Each(envelope, func(_ protowire.Number, b codec.Body) error {
				w, _, err := r.Placed(b)
				got = append(got, w.Attempt)
				return err
			})
			sizes = append(sizes, uint32(len(got)-before))
			return err
		})
		synctest.Wait()
		if len(sizes) != 3 || sizes[2] != 48 {
			t.Errorf("envelopes of %v messages", sizes)
		}
		for i, n := range got {
			if uint32(i) != n {
				t.Fatalf("message %d came as %d", n, i)
			}
		}
		sender.Close(link.ErrClosed)
		<-ended
		if err := sender.Write(func(*codec.Writer) error { return nil }); !errors.Is(err, link.ErrClosed) {
			t.Errorf("writing after the end: %v", err)
		}
		synctest.Wait()
	})
}

// What can wait goes with what comes next, before it, and after the time of a
// beat alone; also on a stream that is busy.
func TestWhatCanWaitGoesWithTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := pipes()
		var got []uint32
		r := codec.NewReader(tensor.NewPool(0))
		sender, ended := run(near, ignore)
		_, _ = run(far, func(envelope mem.BufferSlice) error {
			return r.Each(envelope, func(_ protowire.Number, b codec.Body) error {
				w, _, err := r.Placed(b)
				got = append(got, w.Attempt)
				return err
			})
		})
		later := func(attempt uint32) {
			t.Helper()
			if err := sender.WriteLater(func(w *codec.Writer) error { return w.Placed(infer.Work{Attempt: attempt}, 1) }); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		check := func(when string, want ...uint32) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(got, want) {
				t.Errorf("%s %v have come", when, got)
			}
		}
		later(1)
		later(2)
		check("before anything else")
		write(t, sender, 3)
		check("with the next", 1, 2, 3)
		later(4)
		<-time.After(time.Second)
		check("after a beat in which something was sent", 1, 2, 3, 4)
		later(5)
		<-time.After(time.Second)
		check("after the next beat", 1, 2, 3, 4, 5)
		sender.Close(link.ErrClosed)
		<-ended
		synctest.Wait()
	})
}

func TestQuietPeersLiveAndSilentOnesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := pipes()
		_, first := run(near, ignore)
		_, second := run(far, ignore)
		<-time.After(time.Hour)
		select {
		case err := <-first:
			t.Fatalf("two quiet peers: %v", err)
		case err := <-second:
			t.Fatalf("two quiet peers: %v", err)
		default:
		}
		near.end()
		for _, ended := range []<-chan error{first, second} {
			if err := <-ended; errs.Of(err) != errs.PeerUnreachable {
				t.Errorf("a stream that broke: %v", err)
			}
		}

		near, _ = pipes() // nobody is at the other end
		begun := time.Now()
		_, alone := run(near, ignore)
		if err := <-alone; errs.Of(err) != errs.PeerUnreachable {
			t.Errorf("a silent peer: %v", err)
		}
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("silence was noticed after %v", took)
		}
		synctest.Wait()
	})
}

// A peer that shows that it is alive and takes nothing does not fill the memory.
func TestPeersThatTakeNothingEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := pipes()
		l, ended := run(near, ignore)
		stop := make(chan struct{})
		go func() {
			beats := time.NewTicker(time.Second)
			defer beats.Stop()
			for {
				select {
				case <-beats.C:
					_ = far.SendMsg(mem.BufferSlice{})
				case <-stop:
					return
				}
			}
		}()
		large := &infer.Response{Outputs: []infer.Tensor{{
			Datatype: tensor.Uint8, Shape: tensor.Shape{1 << 20}, Data: tensor.InHeap(make([]byte, 1<<20)),
		}}}
		send := func() error {
			return l.Write(func(w *codec.Writer) error { return w.Response(codec.SchedulerResponse, large) })
		}
		write(t, l, 1)
		synctest.Wait() // it fills the pipe
		var err error
		sent := 0
		for ; err == nil && sent < 100; sent++ {
			err = send()
		}
		synctest.Wait() // of these some are being sent, all at the latest now
		for ; err == nil && sent < 1000; sent++ {
			err = send()
		}
		if !errors.Is(err, link.ErrClosed) || sent > 258 {
			t.Errorf("%d MiB were taken, then %v", sent, err)
		}
		if err := <-ended; errs.Of(err) != errs.PeerUnreachable {
			t.Errorf("ended with %v", err)
		}
		close(stop)
		synctest.Wait()
	})
}

func TestAReceiverThatFailsEndsTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := pipes()
		broken := errs.New(errs.PeerMalformed, "broken")
		calls := 0
		_, ended := run(near, func(mem.BufferSlice) error { calls++; return broken })
		other, otherEnded := run(far, ignore)
		write(t, other, 1)
		if err := <-ended; !errors.Is(err, broken) || calls != 1 {
			t.Errorf("ended with %v after %d calls", err, calls)
		}
		if err := <-otherEnded; errs.Of(err) != errs.PeerUnreachable {
			t.Errorf("the peer ended with %v", err)
		}
		synctest.Wait()
	})
}

// A peer that opens a stream and says nothing does not keep it.
func TestNoHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, far := pipes()
		if err := link.ExpectHello(t.Context(), far, new(nereidv1.GatewayHello)); errs.Of(err) != errs.PeerUnreachable {
			t.Errorf("a peer that says nothing: %v", err)
		}
		stopped := errs.New(errs.Draining, "over")
		ctx, stop := context.WithCancelCause(t.Context())
		stop(stopped)
		if err := link.ExpectHello(ctx, far, new(nereidv1.GatewayHello)); !errors.Is(err, stopped) {
			t.Errorf("a server that stops: %v", err)
		}
		far.end()
	})
}
