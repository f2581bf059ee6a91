package bus_test

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// relay forwards one connection to a server until cut is called, and accepts none
// after it, as a network that fails. Messages from the server pass through filter,
// which drops those for which it is false, and may wait; nil passes all.
func relay(t *testing.T, server string, filter func(message []byte) bool) (addr string, cut func()) {
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
		running.Go(func() {
			forward(t, near, bufio.NewReader(far), filter)
		})
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

// forward copies what a NATS server says, line by line, messages with their
// payload, until either end closes.
func forward(t *testing.T, to io.Writer, from *bufio.Reader, filter func([]byte) bool) {
	for {
		frame, err := from.ReadBytes('\n')
		if err != nil {
			return
		}
		if bytes.HasPrefix(frame, []byte("MSG ")) || bytes.HasPrefix(frame, []byte("HMSG ")) {
			fields := bytes.Fields(frame)
			size, err := strconv.Atoi(string(fields[len(fields)-1]))
			if err != nil {
				t.Error(err)
				return
			}
			body := make([]byte, size+len("\r\n"))
			if _, err := io.ReadFull(from, body); err != nil {
				return
			}
			frame = append(frame, body...)
			if filter != nil && !filter(frame) {
				continue
			}
		}
		if _, err := to.Write(frame); err != nil {
			return
		}
	}
}

// isAcknowledgement reports whether a message acknowledges a write in a bucket.
func isAcknowledgement(message []byte, bucket string) bool {
	return bytes.Contains(message, []byte(`"stream":"KV_`+bucket+`"`)) && bytes.Contains(message, []byte(`"seq":`))
}
