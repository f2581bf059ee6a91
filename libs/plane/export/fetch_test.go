package export_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/export"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// lender is a worker that others fetch from, at the far side of a wire.
type lender struct {
	*export.Endpoint
	end
	wire *wire
	stop func()
}

const lenderEpoch, askerEpoch = 11, 12

func newLender(t *testing.T, m mode, first func(net.Conn) net.Conn) *lender {
	t.Helper()
	l := &lender{end: newEnd(t, m.shared)}
	l.Endpoint = export.NewEndpoint(export.Config{ID: "lender", Arena: l.arena, Pool: l.pool, Clock: mono.New()})
	l.Introduce(lenderEpoch)
	address := "127.0.0.1:0"
	if m.network == "unix" {
		address = filepath.Join(t.TempDir(), "s")
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), m.network, address)
	if err != nil {
		t.Fatal(err)
	}
	l.wire = &wire{Listener: listener, first: first}
	server := grpc.NewServer(link.ServerOptions(nil, nil)...)
	l.Register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l.wire) }()
	l.stop = func() {
		l.Close()
		server.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	}
	return l
}

func (l *lender) peer() link.Peer {
	if l.wire.Addr().Network() == "unix" {
		return link.Peer{Address: "unix:" + l.wire.Addr().String()}
	}
	return link.Peer{Address: l.wire.Addr().String()}
}

// asker is a process that fetches, and dials on the test's word.
type asker struct {
	*export.Endpoint
	end
	progress export.Progress
}

func newAsker(t *testing.T, m mode) *asker {
	t.Helper()
	a := &asker{end: newEnd(t, m.shared)}
	a.Endpoint = export.NewEndpoint(export.Config{ID: "asker", Arena: a.arena, Pool: a.pool, Clock: mono.New()})
	a.Introduce(askerEpoch)
	t.Cleanup(func() {
		a.Close()
		a.checkEmpty(t, "asker")
	})
	return a
}

// connect returns a function that begins a stream of another process and returns
// how it is ended.
func (l *lender) connect(t *testing.T, from *export.Endpoint) func() (stop func()) {
	progress := new(export.Progress)
	return func() func() {
		ctx, cancel := context.WithCancel(context.Background())
		s, err := from.Dial(ctx, l.peer(), progress)
		if err != nil {
			t.Error(err)
			return cancel
		}
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		return func() {
			cancel()
			<-ended
		}
	}
}

// dial begins a stream and returns its end.
func (a *asker) dial(t *testing.T, at link.Peer) (ended <-chan error, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s, err := a.Dial(ctx, at, &a.progress)
	for end := time.Now().Add(patience); err != nil; s, err = a.Dial(ctx, at, &a.progress) { // on a busy machine a try may take too long
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	over := make(chan error, 1)
	go func() { over <- s.Run(ctx); close(over) }()
	return over, func() {
		cancel()
		for range over {
		}
	}
}

// outcome is that of a fetch.
type outcome struct {
	local tensor.Ref
	err   error
}

func (a *asker) fetch(named tensor.Ref) <-chan outcome {
	came := make(chan outcome, 1)
	a.Fetch(named, func(local tensor.Ref, err error) { came <- outcome{local, err} })
	return came
}

// wait returns what comes.
func wait[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatal("nothing has come")
		panic("unreachable")
	}
}

// check fails unless a fetch brought a tensor.
func (o outcome) check(t *testing.T, want infer.Tensor) {
	t.Helper()
	if o.err != nil {
		t.Error(o.err)
		return
	}
	if !bytes.Equal(must(o.local.Bytes()), must(want.Data.Bytes())) {
		t.Error("other bytes have come")
	}
	o.local.Release()
}

// wire is a listener whose first connection may be disturbed.
type wire struct {
	net.Listener
	first func(net.Conn) net.Conn // nil leaves it; owned by who accepts
}

func (w *wire) Accept() (net.Conn, error) {
	c, err := w.Listener.Accept()
	if err == nil && w.first != nil {
		c, w.first = w.first(c), nil
	}
	return c, err
}

// limited is a connection on which only so many bytes are written, and then what
// then says.
type limited struct {
	net.Conn
	left int
	then func(net.Conn) error
}

func (c *limited) Write(b []byte) (int, error) {
	if c.left -= len(b); c.left < 0 {
		return 0, c.then(c.Conn)
	}
	return c.Conn.Write(b)
}

func cut(c net.Conn) error { return errors.Join(c.Close(), io.ErrClosedPipe) }

// A process fetches from another, and from itself without a stream, what was lent
// and nothing else.
func TestFetchBetweenWorkers(t *testing.T) {
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			l := newLender(t, m, nil)
			defer l.stop()
			a := newAsker(t, m)
			_, stop := a.dial(t, l.peer())
			defer stop()
			in := l.tensorOf(t, "in", 3<<20)
			defer in.Data.Release()
			named, lease := l.Exports.Lend([]infer.Tensor{in}, lenderEpoch)
			slot := named[0].Data
			wait(t, a.fetch(slot)).check(t, in)
			self := make(chan outcome, 1)
			l.Fetch(slot, func(local tensor.Ref, err error) { self <- outcome{local, err} })
			wait(t, self).check(t, in)

			reused, larger := slot, slot
			reused.Generation += 1000
			larger.Length += 8 << 20
			lease.Release()
			released := slot
			in.Data.Release()
			for name, named := range map[string]tensor.Ref{"a slot that was reused": reused, "more than the slot has": larger, "what was released": released} {
				if got := wait(t, a.fetch(named)); errs.Of(got.err) != errs.TransferFailed {
					t.Errorf("%s: %v", name, got.err)
				}
			}
		})
	}
}

// A stream that breaks in the middle of a fetch, of whatever way, costs it
// nothing but time while the holder lives.
func TestFetchOverABrokenStream(t *testing.T) {
	const n = 4 << 20
	for name, breakOff := range map[string]func(net.Conn) error{
		"cut": func(c net.Conn) error { return errors.Join(c.Close(), io.ErrClosedPipe) },
		"half-closed": func(c net.Conn) error {
			return errors.Join(c.(interface{ CloseWrite() error }).CloseWrite(), io.ErrClosedPipe)
		},
	} {
		for _, m := range modes()[1:] {
			t.Run(name+"/"+m.name, func(t *testing.T) {
				l := newLender(t, m, func(c net.Conn) net.Conn { return &limited{c, n / 2, breakOff} })
				defer l.stop()
				a := newAsker(t, m)
				ended, stop := a.dial(t, l.peer())
				defer stop()
				in := l.tensorOf(t, "in", n)
				named, lease := l.Exports.Lend([]infer.Tensor{in}, lenderEpoch)
				fetched := a.fetch(named[0].Data)
				if err := wait(t, ended); errs.Of(err) != errs.PeerUnreachable {
					t.Errorf("the stream ended with %v", err)
				}
				_, again := a.dial(t, l.peer())
				defer again()
				wait(t, fetched).check(t, in)
				lease.Release()
				in.Data.Release()
			})
		}
	}
}

// A holder that dies while it is fetched from fails the fetch, once its lease has
// ended, and nothing else.
func TestHolderDiesDuringAFetch(t *testing.T) {
	const n = 4 << 20
	for _, m := range modes()[1:] {
		t.Run(m.name, func(t *testing.T) {
			l := newLender(t, m, func(c net.Conn) net.Conn { return &limited{c, n / 2, cut} })
			a := newAsker(t, m)
			ended, stop := a.dial(t, l.peer())
			defer stop()
			in := l.tensorOf(t, "in", n)
			named, lease := l.Exports.Lend([]infer.Tensor{in}, lenderEpoch)
			request := &infer.Request{Work: work(1), Inputs: named}
			failed := make(chan error, 2)
			a.FetchInputs(request, func(err error) { failed <- err })
			wait(t, ended)
			l.stop()
			a.Gone(lenderEpoch)
			if err := wait(t, failed); errs.Of(err) != errs.TransferFailed || len(failed) > 0 {
				t.Errorf("the fetch ended with %v, %d times", err, 1+len(failed))
			}
			lease.Release()
			in.Data.Release()
		})
	}
}

// The elements of strings that no gateway has seen are checked where they are
// fetched; a request whose are wrong fails alone.
func TestStringsOfWorkersAreChecked(t *testing.T) {
	whole := bytes.Repeat([]byte{2, 0, 0, 0, 'a', 'b'}, 10_000)
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			l := newLender(t, m, nil)
			defer l.stop()
			a := newAsker(t, m)
			_, stop := a.dial(t, l.peer())
			defer stop()
			for name, tt := range map[string]struct {
				data []byte
				want errs.Reason
			}{
				"whole":                {whole, ""},
				"a length that is cut": {whole[:len(whole)-4], errs.TensorDataInvalid},
				"an element cut":       {whole[:len(whole)-1], errs.TensorDataInvalid},
				"fewer elements":       {whole[6:], errs.TensorDataInvalid},
				"an element too long":  {append(bytes.Clone(whole[:len(whole)-6]), 0xff, 0xff, 0xff, 0xff, 'a', 'b'), errs.TensorDataInvalid},
			} {
				in := l.tensorOf(t, "in", len(tt.data))
				copy(must(in.Data.Bytes()), tt.data)
				in.Datatype, in.Shape = tensor.Bytes, tensor.Shape{10_000}
				named, lease := l.Exports.Lend([]infer.Tensor{in}, lenderEpoch)
				request := &infer.Request{Work: work(1), Inputs: named}
				done := make(chan error, 1)
				a.FetchInputs(request, func(err error) { done <- err })
				if err := wait(t, done); (err == nil) != (tt.want == "") || err != nil && errs.Of(err) != tt.want {
					t.Errorf("%s: %v", name, err)
				}
				request.Release()
				lease.Release()
				in.Data.Release()
			}
		})
	}
}
