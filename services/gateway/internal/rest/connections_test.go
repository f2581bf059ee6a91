package rest_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/serve"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/rest"
)

// closings counts connections that are closed for what their clients do.
type closings struct{ counted, reported atomic.Int32 }

func (c *closings) Failed(r errs.Reason) {
	if r == errs.MemoryFull {
		c.counted.Add(1)
	}
}

// served is an HTTP server whose connections count. Its handler waits until release is closed.
type served struct {
	address  string
	budget   *memory.Budget
	closed   closings
	entered  chan struct{}
	release  chan struct{}
	received atomic.Int64 // bytes that the budget had when the last handler began
}

func serveCounted(t *testing.T, limit int64, most int) *served {
	t.Helper()
	s := &served{budget: memory.NewBudget(limit), entered: make(chan struct{}, 1000), release: make(chan struct{})}
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = raw.Addr().String()
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.received.Store(s.budget.Reserved())
		s.entered <- struct{}{}
		<-s.release
		_, _ = io.WriteString(w, "done")
	})}
	connections := rest.NewConnections(s.budget, nil, &s.closed, func(net.Addr, *errs.Error) { s.closed.reported.Add(1) })
	l := connections.Count(server, serve.WithMaxConnections(raw, most, func(uint64) {}))
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
		s.drained(t)
	})
	return s
}

// drained waits until nothing is charged.
func (s *served) drained(t *testing.T) {
	t.Helper()
	for range 1_000_000 {
		if s.budget.Reserved() == 0 {
			return
		}
		http.DefaultTransport.(*http.Transport).CloseIdleConnections() // yields
	}
	t.Errorf("%d bytes are charged", s.budget.Reserved())
}

func (s *served) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// get sends a request on an open connection, and returns the status.
func get(t *testing.T, c net.Conn, header string) int {
	t.Helper()
	if _, err := io.WriteString(c, "GET /v2 HTTP/1.1\r\nHost: x\r\n"+header+"\r\n"); err != nil {
		t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	_, _ = io.Copy(io.Discard, r.Body)
	return r.StatusCode
}

// Heads that never end, of long fields or of many short ones, take no more than their part of
// the budget, and keep honest clients out of nothing.
func TestUnfinishedHeadsAreBounded(t *testing.T) {
	const limit, clients = 64 << 20, 400
	for name, line := range map[string]func(i int) string{
		"long fields":       func(i int) string { return fmt.Sprintf("X-%d: %s\r\n", i, strings.Repeat("x", 8000)) },
		"many short fields": func(i int) string { return fmt.Sprintf("%x:\n", i) },
	} {
		t.Run(name, func(t *testing.T) {
			s := serveCounted(t, limit, 0)
			close(s.release)
			honest := s.dial(t)
			var most int64
			for range clients {
				c := s.dial(t)
				var head strings.Builder
				head.WriteString("GET /v2 HTTP/1.1\r\nHost: x\r\n")
				for i := 0; head.Len() < 60<<10; i++ {
					head.WriteString(line(i))
				}
				_, _ = io.WriteString(c, head.String()) // it may be closed
				most = max(most, s.budget.Reserved())
				if status := get(t, honest, ""); status != http.StatusOK {
					t.Fatalf("the honest client gets %d", status)
				}
			}
			if most > limit/8+8<<20 { // a connection that is being closed is charged for a moment longer
				t.Errorf("the heads were charged %d bytes of %d", most, int64(limit))
			}
			if n := s.closed.counted.Load(); n == 0 || n != s.closed.reported.Load() {
				t.Errorf("%d connections were closed, and %d reported", n, s.closed.reported.Load())
			}
		})
	}
}

// A head is charged until the response to its request is complete.
func TestAHeadIsChargedUntilTheResponse(t *testing.T) {
	s := serveCounted(t, 64<<20, 0)
	c := s.dial(t)
	done := make(chan int, 1)
	go func() { done <- get(t, c, "X: "+strings.Repeat("x", 10_000)+"\r\n") }()
	<-s.entered
	if n := s.received.Load(); n < 10_000 {
		t.Errorf("%d bytes are charged for a head of 10,000", n)
	}
	close(s.release)
	if status := <-done; status != http.StatusOK {
		t.Error(status)
	}
	s.drained(t)
	if status := get(t, c, ""); status != http.StatusOK { // the connection serves on
		t.Error(status)
	}
}

func TestAHeadThatIsTooLargeIsRefused(t *testing.T) {
	s := serveCounted(t, 64<<20, 0)
	close(s.release)
	if status := get(t, s.dial(t), "X: "+strings.Repeat("x", 80<<10)+"\r\n"); status != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("80 KiB of header fields: %d", status)
	}
}

// Idle connections, and those with half a head, give up their places to new ones. Those
// that are served keep theirs.
func TestConnectionsWithoutRequestsKeepNobodyOut(t *testing.T) {
	const most = 8
	s := serveCounted(t, 64<<20, most)
	busy := s.dial(t)
	done := make(chan int, 1)
	go func() { done <- get(t, busy, "") }()
	<-s.entered
	for i := range 10 * most {
		c := s.dial(t)
		if i%2 == 0 {
			_, _ = io.WriteString(c, "GET /v2 HTTP/1.1\r\n")
		}
	}
	close(s.release)
	if status := <-done; status != http.StatusOK {
		t.Error(status)
	}
	if status := get(t, s.dial(t), ""); status != http.StatusOK {
		t.Error(status)
	}
}

// pipes is a listener that accepts the connections it is given.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) { return <-p, nil }
func (p pipes) Close() error              { return nil }
func (p pipes) Addr() net.Addr            { return nil }

// TestIdleClientsAreNotWaitedFor has connections be in use that have a request, or had one
// or were opened lately, and no others: a stop waits for those.
func TestIdleClientsAreNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lately = 2 * time.Second
		server, listener := new(http.Server), make(pipes, 1)
		c := rest.NewConnections(nil, nil, nil, nil)
		l := c.Count(server, listener)
		accept := func() net.Conn {
			one, other := net.Pipe()
			t.Cleanup(func() { _ = other.Close() })
			listener <- one
			accepted, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			return accepted
		}
		want := func(what string, in bool) {
			t.Helper()
			if c.InUse(lately) != in {
				t.Errorf("%s is in use: %t, want %t", what, !in, in)
			}
		}
		want("no connection", false)
		one := accept()
		want("a connection that was just opened", true)
		<-time.After(lately + time.Second)
		want("a connection without requests", false)
		server.ConnState(one, http.StateActive)
		<-time.After(time.Minute)
		want("a connection with a long request", true)
		server.ConnState(one, http.StateIdle)
		<-time.After(lately / 2)
		want("a connection that had a request lately", true)
		other := accept()
		_ = one.Close()
		<-time.After(lately + time.Second)
		want("an idle connection beside a closed one", false)
		server.ConnState(one, http.StateIdle) // after its end
		want("a connection that is closed", false)
		_ = other.Close()
	})
}
