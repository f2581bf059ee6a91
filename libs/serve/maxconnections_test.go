package serve_test

import (
	"net"
	"testing"

	"github.com/nereid-serving/nereid/libs/serve"
)

func TestConnectionsBeyondTheBoundAreClosed(t *testing.T) {
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := make(chan uint64, 4)
	l := serve.WithMaxConnections(raw, 1, func(total uint64) { refused <- total })
	defer l.Close()
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", raw.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	dial()
	first := <-accepted
	for want := uint64(1); want <= 2; want++ {
		if _, err := dial().Read(make([]byte, 1)); err == nil {
			t.Error("a connection beyond the bound is served")
		}
		if got := <-refused; got != want {
			t.Errorf("%d were refused, want %d", got, want)
		}
	}
	_ = first.Close()
	_ = first.Close() // counts once
	dial()
	second := <-accepted
	if _, err := dial().Read(make([]byte, 1)); err == nil {
		t.Error("closed twice, a connection made room for two")
	}
	_ = second.Close()
}
