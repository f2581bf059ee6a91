package scheduler_test

import (
	"bytes"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// network passes connections on to a server, except while it is cut.
type network struct {
	listener net.Listener
	server   string
	running  sync.WaitGroup

	mu   sync.Mutex
	down bool              // guarded by mu
	sent bytes.Buffer      // by clients; guarded by mu
	ends map[net.Conn]bool // guarded by mu
}

// relay makes a network between the server at a URL and the URL that it returns.
func relay(t *testing.T, url string) (string, *network) {
	t.Helper()
	scheme, server, _ := strings.Cut(url, "://")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &network{listener: listener, server: server, ends: make(map[net.Conn]bool)}
	n.running.Go(n.serve)
	t.Cleanup(func() {
		n.cut()
		_ = listener.Close()
		n.running.Wait()
	})
	return scheme + "://" + listener.Addr().String(), n
}

func (n *network) serve() {
	for {
		near, err := n.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", n.server)
		if err != nil || !n.add(near, far) {
			_ = near.Close()
			if far != nil {
				_ = far.Close()
			}
			continue
		}
		n.running.Go(func() { n.copy(far, io.TeeReader(near, n)) })
		n.running.Go(func() { n.copy(near, far) })
	}
}

// copy passes bytes on until one end closes, and then has serve's other copy end, too.
func (n *network) copy(to net.Conn, from io.Reader) {
	_, _ = io.Copy(to, from)
	_ = to.Close()
}

// Write records what clients have sent.
func (n *network) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sent.Write(p)
}

// lastSent is where the last bytes of a text begin among those that clients have sent.
func (n *network) lastSent(text string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return bytes.LastIndex(n.sent.Bytes(), []byte(text))
}

func (n *network) add(ends ...net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, end := range ends {
		n.ends[end] = true
	}
	return !n.down
}

// cut ends all connections and takes no new ones.
func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = true
	for end := range n.ends {
		_ = end.Close()
	}
	clear(n.ends)
}

// mend takes connections again.
func (n *network) mend() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = false
}
