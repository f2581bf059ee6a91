package cluster

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"
)

// link is a process's way to NATS, which can be slow or cut.
type link struct {
	l  net.Listener
	to string

	mu    sync.Mutex
	delay time.Duration         // of each piece, either way; guarded by mu
	cut   bool                  // guarded by mu
	conns map[net.Conn]struct{} // guarded by mu
	wait  sync.WaitGroup
}

func newLink(t *testing.T, to string) *link {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &link{l: l, to: to, conns: make(map[net.Conn]struct{})}
	k.wait.Go(k.accept)
	t.Cleanup(func() {
		_ = l.Close()
		k.set(true, 0)
		k.wait.Wait()
	})
	return k
}

// url is where the process finds NATS.
func (k *link) url() string { return "nats://" + k.l.Addr().String() }

// set cuts the link or mends it, and makes it slow.
func (k *link) set(cut bool, delay time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cut, k.delay = cut, delay
	if cut {
		for c := range k.conns {
			_ = c.Close()
		}
	}
}

func (k *link) accept() {
	for {
		from, err := k.l.Accept()
		if err != nil {
			return
		}
		to, err := (&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), "tcp", k.to)
		if err != nil || !k.join(from, to) {
			_ = from.Close()
			if err == nil {
				_ = to.Close()
			}
			continue
		}
		k.wait.Go(func() { k.carry(from, to) })
		k.wait.Go(func() { k.carry(to, from) })
	}
}

func (k *link) join(conns ...net.Conn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cut {
		return false
	}
	for _, c := range conns {
		k.conns[c] = struct{}{}
	}
	return true
}

func (k *link) pause() {
	k.mu.Lock()
	d := k.delay
	k.mu.Unlock()
	if d > 0 {
		time.Sleep(d) //nolint:forbidigo // this is what a slow network does
	}
}

func (k *link) carry(from, to net.Conn) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			k.pause()
			if _, failed := to.Write(buffer[:n]); failed != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	_ = from.Close()
	_ = to.Close()
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.conns, from)
	delete(k.conns, to)
}
