package serve_test

import (
	"net"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/serve"
)

// slots accepts on l, and hands on the slots of what it accepts.
func slots(t *testing.T, l net.Listener) <-chan *serve.Slot {
	t.Helper()
	t.Cleanup(func() { _ = l.Close() })
	accepted := make(chan *serve.Slot)
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- serve.SlotOf(c)
		}
	}()
	return accepted
}

func dial(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// wantClosed waits until the server has closed a connection.
func wantClosed(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is open")
	}
}

func TestConnectionsBeyondTheBoundAreClosed(t *testing.T) {
	refused := make(chan uint64, 4)
	l := serve.WithMaxConnections(listen(t), 1, func(total uint64) { refused <- total })
	accepted := slots(t, l)
	dial(t, l)
	first := <-accepted
	first.Begin()
	for want := uint64(1); want <= 2; want++ {
		wantClosed(t, dial(t, l))
		if got := <-refused; got != want {
			t.Errorf("%d were closed, want %d", got, want)
		}
	}
	_ = first.Close()
	_ = first.Close() // counts once
	dial(t, l)
	second := <-accepted
	second.Begin()
	wantClosed(t, dial(t, l))
	_ = second.Close()
}

// Connections that do nothing keep nobody out: each new one closes the one that has been
// idle for longest.
func TestIdleConnectionsGiveUpTheirPlaces(t *testing.T) {
	l := serve.WithMaxConnections(serve.WithWriteTimeout(listen(t), time.Minute), 3, func(uint64) {})
	accepted := slots(t, l)
	var clients []net.Conn
	var open []*serve.Slot
	connect := func() {
		clients = append(clients, dial(t, l))
		open = append(open, <-accepted)
	}
	for range 3 {
		connect()
	}
	open[0].Begin() // serves a request
	open[1].Begin()
	open[1].End() // has served one just now
	connect()
	wantClosed(t, clients[2])
	connect() // the second chance of 1 is gone, and 3 is newer
	wantClosed(t, clients[1])
	open[0].End()
	open[3].Begin()
	open[4].Begin()
	connect()
	wantClosed(t, clients[0])
	for _, s := range open {
		_ = s.Close()
	}
}

// A preferred connection gives up its place only when no other is idle.
func TestPreferredConnectionsGiveUpTheirPlacesLast(t *testing.T) {
	l := serve.WithMaxConnections(listen(t), 3, func(uint64) {})
	accepted := slots(t, l)
	var clients []net.Conn
	var open []*serve.Slot
	connect := func() {
		clients = append(clients, dial(t, l))
		open = append(open, <-accepted)
	}
	for range 3 {
		connect()
	}
	open[0].Prefer(func() bool { return true })
	open[1].Prefer(func() bool { return false })
	connect()
	wantClosed(t, clients[1])
	connect()
	wantClosed(t, clients[2])
	open[3].Begin()
	open[4].Begin()
	connect()
	wantClosed(t, clients[0])
	for _, s := range open {
		_ = s.Close()
	}
}

func TestWithoutABoundThereAreNoSlots(t *testing.T) {
	l := serve.WithMaxConnections(listen(t), 0, nil)
	accepted := slots(t, l)
	dial(t, l)
	s := <-accepted
	if s.Begin(); s != nil {
		t.Error("there is a slot")
	}
	s.End()
	s.Prefer(nil)
}
