package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// soakRequests is how many requests a flood has: NEREID_SOAK. Without it the
// test is skipped.
func soakRequests(t *testing.T) int {
	t.Helper()
	text := os.Getenv("NEREID_SOAK")
	if text == "" {
		t.Skip("takes minutes: run make soak")
	}
	n, err := strconv.Atoi(text)
	if err != nil || n <= 0 {
		t.Fatalf("NEREID_SOAK is %q: want a number of requests", text)
	}
	return n
}

// soaked are the models of these tests: one that answers at once, one that
// takes a while with each request, and one for answers of any size.
func soaked(t *testing.T) *server {
	t.Helper()
	big := `
backend: "echo"
input [{ name: "x" data_type: TYPE_UINT8 dims: [-1] }]
output [{ name: "y" data_type: TYPE_UINT8 dims: [-1] }]
instance_group [{ count: 1 kind: KIND_CPU }]
`
	return start(t, repository(t, map[string]string{
		"quick/config.pbtxt": echo(0), "quick/1/.keep": "",
		"slow/config.pbtxt": echo(300_000_000), "slow/1/.keep": "",
		"big/config.pbtxt": big, "big/1/.keep": "",
	}), "--log-warning=false")
}

// vitals are what a server has in use.
type vitals struct{ Goroutines, Files, InFlight, Held, Tensors, Resident int64 }

func (v vitals) String() string {
	return fmt.Sprintf("%d goroutines, %d files, %d requests, %d bytes held, %d bytes of tensors, %d MiB resident",
		v.Goroutines, v.Files, v.InFlight, v.Held, v.Tensors, v.Resident>>20)
}

func (s *server) vitals() vitals {
	s.t.Helper()
	text := s.metrics()
	value := func(name string) int64 {
		for line := range strings.Lines(text) {
			if rest, ok := strings.CutPrefix(line, name+" "); ok {
				f, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
				if err != nil {
					s.t.Fatalf("%s: %v", line, err)
				}
				return int64(f)
			}
		}
		s.t.Fatalf("no %s in the metrics", name)
		return 0
	}
	return vitals{
		Goroutines: value("go_goroutines"), Files: value("process_open_fds"), Resident: value("process_resident_memory_bytes"),
		InFlight: value("nereid_gateway_in_flight_requests"), Held: value("nereid_gateway_request_bytes"),
		Tensors: value(`nereid_worker_tensor_memory_bytes{state="in_use"}`),
	}
}

// settles waits until the server has in use what it had before, but for its
// memory, of which it keeps some.
func (s *server) settles(before vitals) vitals {
	s.t.Helper()
	const slack = 8 // goroutines that only look whether there is something to do
	after := before
	for end := time.Now().Add(patience); time.Now().Before(end); {
		after = s.vitals()
		if after.Goroutines <= before.Goroutines+slack && after.Files <= before.Files &&
			after.InFlight == 0 && after.Held == 0 && after.Tensors == before.Tensors {
			return after
		}
	}
	s.t.Fatalf("the server does not come to rest:\nbefore: %v\nafter:  %v", before, after)
	return after
}

// inParallel calls do for 0 to n-1 from several goroutines.
func inParallel(n, goroutines int, do func(i int)) {
	var group sync.WaitGroup
	for g := range goroutines {
		group.Go(func() {
			for i := g; i < n; i += goroutines {
				do(i)
			}
		})
	}
	group.Wait()
}

// caller calls models over both protocols, with connections that stay.
type caller struct {
	t    testing.TB
	s    *server
	http *http.Client
	conn *grpc.ClientConn
	grpc inference.GRPCInferenceServiceClient
}

func newCaller(t testing.TB, s *server) *caller {
	t.Helper()
	conn, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	c := &caller{t: t, s: s, conn: conn, grpc: inference.NewGRPCInferenceServiceClient(conn)}
	c.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	return c
}

func (c *caller) close() {
	c.http.CloseIdleConnections()
	_ = c.conn.Close()
}

// overHTTP sends a body to a model and returns the status, 0 for none.
func (c *caller) overHTTP(ctx context.Context, model, body string) int {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.s.HTTP+"/v2/models/"+model+"/infer", strings.NewReader(body))
	if err != nil {
		c.t.Error(err)
		return 0
	}
	w, err := c.http.Do(r)
	if err != nil {
		return 0
	}
	defer w.Body.Close()
	return w.StatusCode
}

func (c *caller) overGRPC(ctx context.Context, model string, value byte, dims ...int64) error {
	_, err := c.grpc.ModelInfer(ctx, &inference.ModelInferRequest{
		ModelName:        model,
		Inputs:           []*inference.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "INT32", Shape: dims}},
		RawInputContents: [][]byte{{value, 0, 0, 0}},
	})
	return err
}

// Three floods of requests leave nothing behind, and the memory of the last
// is that of the first.
func TestSoakFloods(t *testing.T) {
	n := soakRequests(t)
	s := soaked(t)
	before := s.vitals()
	var first vitals
	for i, flood := range []func(*caller, int){(*caller).goodHTTP, (*caller).goodGRPC, (*caller).mixed} {
		c, began := newCaller(t, s), time.Now()
		inParallel(n, 32, func(i int) { flood(c, i) })
		took := time.Since(began)
		c.close()
		after := s.settles(before)
		t.Logf("flood %d: %d requests, %.0f/s; %v", i+1, n, float64(n)/took.Seconds(), after)
		if i == 0 {
			first = after
		}
		if most := first.Resident + first.Resident/2; after.Resident > most {
			t.Errorf("%d MiB are resident, after the first flood it was %d", after.Resident>>20, first.Resident>>20)
		}
	}
}

func (c *caller) goodHTTP(int) {
	if status := c.overHTTP(c.t.Context(), "quick", one); status != http.StatusOK {
		c.t.Errorf("status %d", status)
	}
}

func (c *caller) goodGRPC(i int) {
	if err := c.overGRPC(c.t.Context(), "quick", byte(i), 1, 1); err != nil {
		c.t.Error(err)
	}
}

// mixed is one of good, wrong and abandoned requests. What is abandoned waits
// for the busy model, or is under way to the quick one.
func (c *caller) mixed(i int) {
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Duration(rand.IntN(2000))*time.Microsecond)
	defer cancel()
	switch i % 8 {
	case 0:
		c.goodHTTP(i)
	case 1:
		c.goodGRPC(i)
	case 2:
		if status := c.overHTTP(c.t.Context(), "quick", one[:1+i%(len(one)-1)]); status != http.StatusBadRequest {
			c.t.Errorf("half a body: status %d", status)
		}
	case 3:
		if err := c.overGRPC(c.t.Context(), "quick", 1, 2, 2); err == nil {
			c.t.Error("a wrong shape is taken")
		}
	case 4:
		c.overHTTP(ctx, "quick", one)
	case 5:
		_ = c.overGRPC(ctx, "quick", 1, 1, 1)
	case 6:
		c.overHTTP(ctx, "slow", one)
	case 7:
		_ = c.overGRPC(ctx, "slow", 1, 1, 1)
	}
}
