package bus_test

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// relay passes one connection on to a server until cut is called, and takes
// none after it, as a network that fails.
func relay(t *testing.T, server string) (addr string, cut func()) {
	t.Helper()
	listener := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	scheme, host, _ := strings.Cut(server, "://")
	var running sync.WaitGroup
	ends := make(chan net.Conn, 2)
	running.Go(func() {
		defer close(ends)
		near, err := listener.Accept()
		if err != nil {
			return
		}
		ends <- near
		far, err := net.Dial("tcp", host)
		if err != nil {
			t.Error(err)
			return
		}
		ends <- far
		running.Go(func() { _, _ = io.Copy(far, near) })
		running.Go(func() { _, _ = io.Copy(near, far) })
	})
	cut = sync.OnceFunc(func() {
		_ = listener.Close()
		for end := range ends {
			_ = end.Close()
		}
		running.Wait()
	})
	t.Cleanup(cut)
	return scheme + "://" + listener.Addr().String(), cut
}
