package serve_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nereid-serving/nereid/libs/serve"
)

func TestAPeerThatDoesNotReadLosesTheConnection(t *testing.T) {
	var config net.ListenConfig
	plain, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := serve.WithWriteTimeout(plain, 50*time.Millisecond)
	defer l.Close()
	var dialer net.Dialer
	client, err := dialer.DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	// As a server does around its handshake.
	if err := errors.Join(conn.SetDeadline(time.Now().Add(time.Hour)), conn.SetDeadline(time.Time{})); err != nil {
		t.Fatal(err)
	}
	for err == nil { // until the kernel's buffers are full
		_, err = conn.Write(make([]byte, 1<<20))
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the write returned %v", err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the connection is open: reading says %v", err)
	}
}

// A connection stays open whose writes are far apart, or whose peer reads slowly.
func TestTheWriteDeadlineMovesWithTheWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = time.Minute
		plain := newPipes()
		l := serve.WithWriteTimeout(plain, timeout)
		accepted := make(chan net.Conn)
		go func() {
			conn, _ := l.Accept()
			accepted <- conn
		}()
		client := plain.connect()
		conn := <-accepted
		go func() {
			for range 5 {
				<-time.After(timeout / 2)
				_, _ = io.ReadFull(client, make([]byte, 1))
			}
		}()
		for i := range 5 {
			if i == 3 {
				<-time.After(10 * timeout)
			}
			if _, err := conn.Write([]byte("x")); err != nil {
				t.Fatalf("write %d: %v", i, err)
			}
		}
	})
}

// A peer that reads 64 KiB within the timeout is served, however long it takes; one that reads
// less is not.
func TestAWriteMustProgress(t *testing.T) {
	const size, timeout = 1 << 20, time.Minute
	for piece, whole := range map[int]bool{64 << 10: true, 60 << 10: false, 0: false} {
		synctest.Test(t, func(t *testing.T) {
			plain := newPipes()
			l := serve.WithWriteTimeout(plain, timeout)
			accepted := make(chan net.Conn)
			go func() {
				conn, _ := l.Accept()
				accepted <- conn
			}()
			client := plain.connect()
			conn := <-accepted
			var reader sync.WaitGroup
			reader.Go(func() {
				for range size / (64 << 10) {
					<-time.After(timeout * 9 / 10)
					_, _ = io.ReadFull(client, make([]byte, piece))
				}
			})
			started := time.Now()
			n, err := conn.Write(make([]byte, size))
			if took := time.Since(started); whole != (err == nil) || !whole && (n >= size || took > 20*timeout || !errors.Is(err, os.ErrDeadlineExceeded)) {
				t.Errorf("a peer that reads %d bytes at a time: %d bytes in %v, %v", piece, n, took, err)
			}
			_ = errors.Join(conn.Close(), client.Close())
			reader.Wait()
		})
	}
}

// deaf is a client's connection that can stop reading.
type deaf struct {
	net.Conn
	stopped chan struct{}
	closed  chan struct{}
	once    sync.Once
}

func (d *deaf) Read(p []byte) (int, error) {
	select {
	case <-d.stopped:
		<-d.closed
		return 0, net.ErrClosed
	default:
		return d.Conn.Read(p)
	}
}

func (d *deaf) Close() error {
	d.once.Do(func() { close(d.closed) })
	return d.Conn.Close()
}

// A call whose client does not read its responses ends, so that it holds no
// memory.
func TestACallEndsWhoseClientDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain := newPipes()
		started, ended := make(chan struct{}), make(chan error, 1)
		d := &deaf{stopped: make(chan struct{}), closed: make(chan struct{})}
		server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			close(started)
			<-d.stopped
			var err error
			for err == nil {
				err = stream.SendMsg(wrapperspb.Bytes(make([]byte, 1<<10)))
			}
			ended <- err
			return err
		}))
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- serve.GRPC(ctx, server, serve.WithWriteTimeout(plain, time.Minute), time.Second) }()
		client, err := grpc.NewClient("passthrough:///pipes", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
				d.Conn = plain.connect()
				return d, nil
			}))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/s/m"); err != nil {
			t.Fatal(err)
		}
		<-started
		close(d.stopped)
		<-ended
		stop()
		if err := errors.Join(<-served, client.Close()); err != nil {
			t.Error(err)
		}
	})
}
