package rest_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/rest"
	"github.com/nereid-serving/nereid/services/gateway/internal/turns"
)

// pipe is both ends of a connection, the only one of its listener.
type pipe struct {
	conn   net.Conn
	server chan net.Conn
}

func newPipe() *pipe {
	near, far := net.Pipe()
	p := &pipe{conn: near, server: make(chan net.Conn, 1)}
	p.server <- far
	return p
}

func (p *pipe) Accept() (net.Conn, error) {
	c, ok := <-p.server
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (p *pipe) Close() error   { close(p.server); return nil }
func (p *pipe) Addr() net.Addr { return &net.TCPAddr{} }

// While all turns are taken, connections whose requests are served are served on, and others wait.
func TestConnectionsWhoseRequestsAreNotServedTakeTurns(t *testing.T) {
	inference := func(model, body string) string {
		return "POST /v2/models/" + model + "/infer HTTP/1.1\r\nHost: x\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
	}
	get := func(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n" }
	served := inference("echo", `{"inputs":[{"name":"IN","datatype":"INT32","shape":[1],"data":[1]}]}`)
	busy := inference("echo", `{"id":"busy","inputs":[{"name":"IN","datatype":"INT32","shape":[1],"data":[1]}]}`)
	for name, c := range map[string]struct {
		before []string
		served bool
	}{
		"a new connection":                                  {nil, false},
		"a served inference":                                {[]string{served}, true},
		"a served probe":                                    {[]string{get("/v2/health/live")}, true},
		"an unknown path":                                   {[]string{served, get("/unknown")}, false},
		"a method that is not allowed":                      {[]string{served, get("/v2/models/echo/infer")}, false},
		"an unknown model":                                  {[]string{served, get("/v2/models/unknown/config")}, false},
		"a request that does not fit its model":             {[]string{served, inference("echo", `{"inputs":[]}`)}, false},
		"requests that an overloaded model refuses":         {[]string{served, busy, busy, busy}, true},
		"only requests that an overloaded model refuses":    {[]string{busy, busy}, false},
		"more served requests than others, which are wrong": {[]string{served, served, served, served, served, get("/unknown")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := turns.New(1)
				s := newServer(t, []*core.Model{echo(tensor.Int32, -1)})
				s.scheduler.submit = func(q *infer.Request) error {
					if q.ID == "busy" {
						return errs.New(errs.QueueFull, "full")
					}
					return nil
				}
				p, server := newPipe(), &http.Server{Handler: s.Handler}
				ended := make(chan error, 1)
				go func() { ended <- server.Serve(rest.NewConnections(nil, all, nil, nil).Count(server, p)) }()
				responses := bufio.NewReader(p.conn)
				send := func(request string) {
					if _, err := io.WriteString(p.conn, request); err != nil {
						t.Error(err)
					}
				}
				receive := func() int {
					r, err := http.ReadResponse(responses, nil)
					if err != nil {
						t.Error(err)
						return 0
					}
					_, _ = io.Copy(io.Discard, r.Body)
					return r.StatusCode
				}
				for _, request := range c.before {
					send(request)
					receive()
				}
				synctest.Wait()
				held := all.Client().Take()
				status := 0
				go func() {
					send(served)
					status = receive()
				}()
				synctest.Wait() // lets no time pass, in which the turn ends by itself
				if (status == http.StatusOK) != c.served {
					t.Errorf("the status is %d while all turns are taken", status)
				}
				held.Release()
				synctest.Wait()
				if status != http.StatusOK {
					t.Errorf("the status is %d", status)
				}
				if turn := all.Client().Take(); turn == nil {
					t.Error("no turn is free in the end")
				}
				_ = p.conn.Close()
				_ = server.Close()
				<-ended
			})
		})
	}
}
