package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// dial opens a connection without a protocol.
func (s *server) dial(address string) (net.Conn, error) {
	return (&net.Dialer{Timeout: patience}).DialContext(s.t.Context(), "tcp", address)
}

// head is the beginning of an inference request with a body of n bytes.
func head(model string, n int) string {
	return fmt.Sprintf("POST /v2/models/%s/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", model, n)
}

// Clients that send rubbish, too much, too slowly or half of it, and that
// leave whenever they like, take nothing from those that do not.
func TestSoakAbuse(t *testing.T) {
	n := soakRequests(t) / 100
	s := soaked(t)
	before := s.vitals()
	abuse := map[string]func(c net.Conn){
		"rubbish":      func(c net.Conn) { _, _ = c.Write(rubbish(rand.IntN(5000))) },
		"huge header":  func(c net.Conn) { _, _ = io.WriteString(c, "GET /v2 HTTP/1.1\r\nX: "+strings.Repeat("x", 2<<20)) },
		"more than is": func(c net.Conn) { _, _ = io.WriteString(c, head("quick", 1<<30)+one) },
		"a bad size":   func(c net.Conn) { _, _ = io.WriteString(c, head("quick", -1)+one) },
		"half closed": func(c net.Conn) {
			_, _ = io.WriteString(c, head("quick", len(one))+one)
			_ = c.(*net.TCPConn).CloseWrite()
		},
		"gone while it is": func(c net.Conn) { _, _ = io.WriteString(c, head("slow", len(one))+one) },
		"reset":            func(c net.Conn) { _, _ = io.WriteString(c, head("slow", 100)); _ = c.(*net.TCPConn).SetLinger(0) },
	}
	stop := s.dribble(200)
	for name, do := range abuse {
		for protocol, address := range map[string]string{"HTTP": s.HTTP, "gRPC": s.GRPC} {
			inParallel(n, 16, func(int) {
				c, err := s.dial(address)
				if err != nil {
					t.Error(err)
					return
				}
				do(c)
				_ = c.Close()
			})
			caller := newCaller(t, s)
			caller.goodHTTP(0)
			caller.goodGRPC(0)
			caller.close()
			if t.Failed() {
				t.Fatalf("%s over %s", name, protocol)
			}
		}
	}
	stop()
	t.Logf("%d abuses of each of %d kinds over HTTP and gRPC: %v", n, len(abuse), s.settles(before))
}

func rubbish(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// dribble holds connections open on which a byte comes each second. The
// returned function ends them.
func (s *server) dribble(n int) (stop func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	var clients sync.WaitGroup
	for range n {
		clients.Go(func() {
			c, err := s.dial(s.HTTP)
			if err != nil {
				s.t.Error(err)
				return
			}
			defer c.Close()
			_, _ = io.WriteString(c, head("quick", len(one)))
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for i := range len(one) - 1 {
				select {
				case <-tick.C:
					_, _ = io.WriteString(c, one[i:i+1])
				case <-ctx.Done():
					return
				}
			}
		})
	}
	return func() { cancel(); clients.Wait() }
}

const bigAnswer = 100 << 20

func bigRequest() string {
	json := fmt.Sprintf(`{"inputs":[{"name":"x","datatype":"UINT8","shape":[%d],"parameters":{"binary_data_size":%d}}],"parameters":{"binary_data_output":true}}`,
		bigAnswer, bigAnswer)
	return fmt.Sprintf("POST /v2/models/big/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nInference-Header-Content-Length: %d\r\n\r\n%s",
		len(json)+bigAnswer, len(json), json)
}

// asksForMuch sends a request whose answer is large, and reads the answer's
// first line.
func (s *server) asksForMuch() (net.Conn, error) {
	c, err := s.dial(s.HTTP)
	if err != nil {
		return nil, err
	}
	_, _ = io.WriteString(c, bigRequest())
	chunk := make([]byte, 1<<20)
	for range bigAnswer / len(chunk) {
		if _, err := c.Write(chunk); err != nil {
			return c, err
		}
	}
	line, err := bufio.NewReaderSize(c, 16).ReadString('\n')
	if err == nil && !strings.Contains(line, " 200 ") {
		err = fmt.Errorf("answer %q", line)
	}
	return c, err
}

// Readers that do not read large answers hold up nobody. How long the others
// take is reported.
func TestSoakSlowReaders(t *testing.T) {
	n := soakRequests(t) / 1000
	s := soaked(t)
	before := s.vitals()
	c := newCaller(t, s)
	alone := s.latency(c, n)
	var slow []net.Conn
	for range 8 {
		conn, err := s.asksForMuch()
		if err != nil {
			t.Fatal(err)
		}
		slow = append(slow, conn)
	}
	leave := s.neverReads(8)
	during := s.vitals()
	beside := s.latency(c, n)
	t.Logf("p50 and p99 alone %v, beside %d readers that stand still %v; %v", alone, len(slow)+8, beside, during)
	leave()
	for _, conn := range slow {
		_ = conn.Close()
	}
	c.close()
	t.Log(s.settles(before))
}

// neverReads opens streams of which each asks for a large answer and takes
// nothing. The returned function ends them.
func (s *server) neverReads(n int) (leave func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	var callers []*caller
	for range n {
		c := newCaller(s.t, s)
		callers = append(callers, c)
		stream, err := c.grpc.ModelStreamInfer(ctx)
		if err != nil {
			s.t.Fatal(err)
		}
		if err := stream.Send(&inference.ModelInferRequest{
			ModelName: "big", Inputs: []*inference.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "UINT8", Shape: []int64{bigAnswer}}},
			RawInputContents: [][]byte{make([]byte, bigAnswer)},
		}); err != nil {
			s.t.Fatal(err)
		}
	}
	s.inFlight(0)
	return func() {
		cancel()
		for _, c := range callers {
			c.close()
		}
	}
}

// latency is the 50th and 99th percentile of n requests, one at a time.
func (s *server) latency(c *caller, n int) [2]time.Duration {
	took := make([]time.Duration, n)
	for i := range took {
		began := time.Now()
		c.goodGRPC(i)
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return [2]time.Duration{took[n/2], took[n*99/100]}
}

// Connections that do nothing cost memory and nothing else.
func TestSoakIdleConnections(t *testing.T) {
	const count = 5000 // over each protocol
	soakRequests(t)
	s := soaked(t)
	before := s.vitals()
	var mu sync.Mutex
	var idle []net.Conn
	inParallel(2*count, 16, func(i int) {
		address := s.HTTP
		if i%2 == 0 {
			address = s.GRPC
		}
		c, err := s.dial(address)
		if err != nil {
			t.Error(err)
			return
		}
		if i%4 == 1 { // these have asked for something before
			_, _ = io.WriteString(c, "GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
			_, _ = c.Read(make([]byte, 1))
		}
		mu.Lock()
		defer mu.Unlock()
		idle = append(idle, c)
	})
	c := newCaller(t, s)
	for i := range 100 {
		c.goodHTTP(i)
		c.goodGRPC(i)
	}
	during := s.vitals()
	if most := before.Resident + 2*count*64<<10; during.Resident > most {
		t.Errorf("%d idle connections take %d MiB", 2*count, (during.Resident-before.Resident)>>20)
	}
	c.close()
	for _, conn := range idle {
		_ = conn.Close()
	}
	t.Logf("%d idle connections: %v; without them: %v", 2*count, during, s.settles(before))
}

// A client that goes away ends its request at every stage.
func TestSoakDisconnects(t *testing.T) {
	n := soakRequests(t) / 1000
	s := soaked(t)
	before := s.vitals()
	for stage, leave := range map[string]func(){
		"reading": func() { s.leavesAfter(head("quick", 1000)+one, 0) },
		"running and queued": func() {
			s.leavesAfter(head("slow", len(one))+one, 2)
		},
		"sending": func() {
			c, err := s.asksForMuch()
			if err != nil {
				t.Error(err)
			}
			_ = c.Close()
		},
		"a stream": func() { s.leavesStream(t) },
	} {
		times := n
		if stage == "sending" {
			times = max(n/20, 1) // of 100 MB each
		}
		for range times {
			leave()
		}
		t.Logf("%s, %d times: %v", stage, times, s.settles(before))
	}
}

// leavesAfter sends text on two connections and closes them as soon as so many
// requests are in flight.
func (s *server) leavesAfter(text string, inFlight int) {
	var conns [2]net.Conn
	for i := range conns {
		c, err := s.dial(s.HTTP)
		if err != nil {
			s.t.Fatal(err)
		}
		conns[i] = c
		_, _ = io.WriteString(c, text)
	}
	if inFlight > 0 {
		s.inFlight(inFlight)
	}
	for _, c := range conns {
		_ = c.Close()
	}
	s.inFlight(0)
}

// leavesStream breaks off a stream with requests of which one runs.
func (s *server) leavesStream(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := newCaller(t, s)
	defer c.close()
	stream, err := c.grpc.ModelStreamInfer(ctx, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if err := stream.Send(&inference.ModelInferRequest{
			ModelName: "slow", Inputs: []*inference.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "INT32", Shape: []int64{1, 1}}},
			RawInputContents: [][]byte{{1, 0, 0, 0}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	s.inFlight(4)
	cancel()
	s.inFlight(0)
}
