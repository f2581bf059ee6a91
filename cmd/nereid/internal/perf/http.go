package perf

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/client"
)

const (
	// maxErrorBody bounds the text of an error that is read, in bytes.
	maxErrorBody = 64 << 10
	// connectTimeout bounds a new connection with its TLS handshake.
	connectTimeout = 10 * time.Second
)

// httpSender writes requests as they were encoded and reads responses with
// net/http's reader: a request costs a third of what it costs through http.Client,
// which hands it to two more goroutines.
type httpSender struct {
	target *Target

	mu     sync.Mutex
	idle   []*httpConn            // the one used last is taken first; guarded by mu
	open   map[*httpConn]struct{} // guarded by mu
	closed bool                   // guarded by mu
}

// httpConn belongs to one request at a time.
type httpConn struct {
	net.Conn
	in   *bufio.Reader
	out  []byte
	used bool
}

// end closes a connection that nobody reads any more: its error tells nothing.
func (c *httpConn) end() { _ = c.Close() }

func newHTTPSender(t *Target) *httpSender {
	return &httpSender{target: t, open: make(map[*httpConn]struct{})}
}

func (s *httpSender) send(ctx context.Context, c *call, respond func()) error {
	for {
		conn, err := s.acquire(ctx)
		if err != nil {
			return &failure{"connect", err.Error()}
		}
		reused := conn.used
		unwatch := context.AfterFunc(ctx, conn.end)
		started, err := conn.roundTrip(c, c.within(s.target))
		unwatch()
		if err == nil {
			respond()
			s.release(conn)
			return nil
		}
		var refused *failure
		if errors.As(err, &refused) { // a whole response: the connection is well
			s.release(conn)
			return err
		}
		s.drop(conn)
		// A server may close an idle connection at any time. The request was not read.
		if reused && !started && ctx.Err() == nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		return connectionFailure(err)
	}
}

// roundTrip sends a request and reads its response. started reports whether any
// byte of a response came.
func (c *httpConn) roundTrip(of *call, timeout time.Duration) (started bool, err error) {
	if timeout > 0 {
		if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
			return false, err
		}
	}
	c.used = true
	request := of.payload.http
	if of.step != nil {
		c.out = of.payload.appendHTTP(c.out[:0], of.step)
		request = c.out
	}
	if _, err := c.Write(request); err != nil {
		return false, err
	}
	if _, err := c.in.Peek(1); err != nil {
		return false, err
	}
	response, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return true, err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusOK && of.keep {
		return true, of.keepHTTP(response)
	}
	if response.StatusCode == http.StatusOK {
		_, err := io.Copy(io.Discard, response.Body)
		return true, err
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxErrorBody))
	if err != nil {
		return true, err
	}
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return true, err
	}
	var body struct{ Error string }
	_ = json.Unmarshal(text, &body) // a proxy's error may be any text
	kind := cmp.Or(response.Header.Get("Nereid-Reason"), "HTTP "+strconv.Itoa(response.StatusCode))
	return true, &failure{kind, cmp.Or(body.Error, string(text))}
}

// keepHTTP reads a response that is kept.
func (c *call) keepHTTP(response *http.Response) error {
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	length, err := strconv.Atoi(response.Header.Get("Inference-Header-Content-Length"))
	if err != nil {
		length = len(body)
	}
	decoded, err := client.DecodeHTTP(body, length)
	if err != nil {
		return &failure{"malformed response", err.Error()}
	}
	c.kept = append(c.kept, decoded)
	return nil
}

// acquire takes an idle connection, or opens one.
func (s *httpSender) acquire(ctx context.Context) (*httpConn, error) {
	s.mu.Lock()
	if n := len(s.idle); n > 0 {
		conn := s.idle[n-1]
		s.idle = s.idle[:n-1]
		s.mu.Unlock()
		return conn, nil
	}
	s.mu.Unlock()
	dialer := &net.Dialer{Timeout: connectTimeout}
	var raw net.Conn
	var err error
	if s.target.TLS != nil {
		raw, err = (&tls.Dialer{NetDialer: dialer, Config: s.target.TLS}).DialContext(ctx, "tcp", s.target.Address)
	} else {
		raw, err = dialer.DialContext(ctx, "tcp", s.target.Address)
	}
	if err != nil {
		return nil, err
	}
	conn := &httpConn{Conn: raw, in: bufio.NewReader(raw)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		conn.end()
		return nil, net.ErrClosed
	}
	s.open[conn] = struct{}{}
	return conn, nil
}

func (s *httpSender) release(c *httpConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = append(s.idle, c)
}

func (s *httpSender) drop(c *httpConn) {
	c.end()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
}

// Close implements sender.
func (s *httpSender) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for c := range s.open {
		c.end()
	}
	return nil
}

// connectionFailure is a failure of the connection, or of the request's deadline on it.
func connectionFailure(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &failure{"timeout", "no response within the request's timeout"}
	}
	return &failure{"connection", err.Error()}
}
