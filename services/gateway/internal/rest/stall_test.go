package rest_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/serve"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/rest"
)

func stallsSoon(o *rest.Options) { o.StallTimeout = time.Millisecond }

// post sends a request that has only the given part of its body and returns
// the response and whether the server closed the connection after it.
func post(t *testing.T, web *httptest.Server, path, header, part string) (status int, body string, closed bool) {
	t.Helper()
	c, err := net.Dial("tcp", web.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n%s", path, header, part); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	r, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	body = readAll(t, r.Body)
	_, err = in.ReadByte()
	return r.StatusCode, body, errors.Is(err, io.EOF)
}

func TestBodyThatStallsEndsTheRequest(t *testing.T) {
	for name, c := range map[string]struct {
		path, header, part, want string
		status                   int
	}{
		"in the JSON":     {"simple", "Content-Length: 1000", `{"inputs":`, "the request's body came too slowly: of it 10 bytes came in ", 408},
		"before any byte": {"simple", "Content-Length: 1000", "", "the request's body came too slowly: of it 0 bytes came in ", 408},
		"in the tensors": {
			"simple", "Content-Length: 400\r\nInference-Header-Content-Length: 384", binaryBody("", "").body,
			"the request's body came too slowly: of it ", 408,
		},
		"in chunks": {"simple", "Transfer-Encoding: chunked", "5\r\n{\"inp\r\n", "the request's body came too slowly: of it 5 bytes came in ", 408},
		"compressed": {
			"simple", "Content-Encoding: gzip\r\nContent-Length: 1000", compress(t, "gzip", pair(""))[:30],
			"the request's body came too slowly: of it 30 bytes came in ", 408,
		},
		"after a refusal": {"nope", "Content-Length: 1000", "x", "Request for unknown model: 'nope' is not found", 404},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, []*core.Model{simple(2)}, stallsSoon)
			web := httptest.NewServer(s)
			defer web.Close()
			status, body, closed := post(t, web, "/v2/models/"+c.path+"/infer", c.header, c.part)
			if status != c.status || !strings.HasPrefix(body, `{"error":"`+c.want) || !closed {
				t.Errorf("%d %s, closed: %t", status, body, closed)
			}
			s.checkMemory(t)
		})
	}
}

// sender is a client that sends a piece of its body at each interval, and the
// connection on which it does.
type sender struct {
	*httptest.ResponseRecorder
	body     *strings.Reader
	piece    int
	interval time.Duration
	deadline time.Time
}

func (s *sender) SetReadDeadline(t time.Time) error { s.deadline = t; return nil }

func (s *sender) Read(p []byte) (int, error) {
	<-time.After(s.interval)
	if !s.deadline.IsZero() && time.Now().After(s.deadline) {
		return 0, os.ErrDeadlineExceeded
	}
	return s.body.Read(p[:min(len(p), s.piece)])
}

func TestSlowBodyMustKeepARate(t *testing.T) {
	for name, c := range map[string]struct {
		piece    int
		interval time.Duration
		status   int
	}{
		"slow but steady":            {1100, time.Second, 200},
		"in bursts":                  {66_000, 59 * time.Second, 200},
		"a pause beyond the minute":  {66_000, 61 * time.Second, 408},
		"steady, but too little":     {1000, time.Second, 408},
		"steady, but far too little": {1, 30 * time.Second, 408},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t, []*core.Model{simple(2)})
				body := pair(`"padding":"` + strings.Repeat("x", 200_000) + `",`)
				w := &sender{httptest.NewRecorder(), strings.NewReader(body), c.piece, c.interval, time.Time{}}
				r := httptest.NewRequest(http.MethodPost, "/v2/models/simple/infer", w)
				r.ContentLength = int64(len(body))
				began := time.Now()
				s.ServeHTTP(w, r)
				if w.Code != c.status {
					t.Errorf("%d %s after %v", w.Code, w.Body, time.Since(began))
				}
				// With a body that is there, a model may take as long as it likes.
				if took := time.Since(began); w.Code == 200 && (took < time.Minute || !w.deadline.IsZero()) {
					t.Errorf("after %v the deadline is %v", took, w.deadline)
				}
				if took := time.Since(began); w.Code == 408 && took > 2*time.Minute {
					t.Errorf("refused after %v", took)
				}
			})
		})
	}
}

// A client that sends its whole body before it reads sees why it was refused.
func TestRefusalReachesAClientThatIsStillSending(t *testing.T) {
	s := newServer(t, []*core.Model{simple(2)}, func(o *rest.Options) { o.MaxInput = 1000 })
	web := httptest.NewServer(s)
	defer web.Close()
	const size = 8 << 20 // more than the sockets' buffers hold
	for path, want := range map[string]int{"simple": 400, "nope": 404} {
		header := fmt.Sprintf("Content-Length: %d\r\nConnection: close", size)
		if status, body, _ := post(t, web, "/v2/models/"+path+"/infer", header, strings.Repeat(" ", size)); status != want {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

// A client that does not read must not hold the memory of its response.
func TestResponseThatNobodyReadsIsGivenUp(t *testing.T) {
	s := newServer(t, []*core.Model{echo(tensor.Uint8, -1)})
	s.scheduler.execute = func(*infer.Request) *infer.Response {
		const size = 32 << 20 // more than the sockets' buffers hold
		b, err := s.pool.Get(size)
		if err != nil {
			t.Error(err)
		}
		return &infer.Response{Outputs: []infer.Tensor{{
			Name: "OUT", Datatype: tensor.Uint8, Shape: tensor.Shape{size}, Data: tensor.InBuffer(b, 0, size),
		}}}
	}
	web := httptest.NewUnstartedServer(s)
	web.Listener = serve.WithWriteTimeout(web.Listener, time.Second) // the response is to begin within it
	web.Start()
	c, err := net.Dial("tcp", web.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := fmt.Fprint(c, "POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nInference-Header-Content-Length: 0\r\n\r\nx"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 12)); err != nil { // the response has begun
		t.Fatal(err)
	}
	web.Close() // waits for the request
	s.checkMemory(t)
}
