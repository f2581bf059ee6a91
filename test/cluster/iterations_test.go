package cluster

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/test/load"
)

const (
	iterationClients = 16
	// iterations are those of each request, which takes a tenth of a second with them.
	iterations = 10
)

// TestIterationsUnderKills has clients send requests of many iterations while
// schedulers and workers die. Each is answered once, by its result or by an error that
// says that it may be sent again; and then each client has results again.
func TestIterationsUnderKills(t *testing.T) {
	n := kills(t)
	s := &scene{cluster: prepare(t, nil)}
	for name, more := range map[string]string{"again": "", "responds": "model_transaction_policy { decoupled: true }"} {
		s.iterating(name, more)
	}
	s.start(append(served(), "again", "responds"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a := iterated{t: t, right: make([]int, iterationClients)}
	var all sync.WaitGroup
	for i := range iterationClients {
		all.Go(func() { a.run(ctx, i, s.targets[i/2%len(s.targets)]) })
	}
	defer all.Wait()
	defer cancel()
	a.settle()
	for range n {
		a.outlive(s, killHolder(control.PoolRole("default")))
		a.outlive(s, killOne("worker"))
	}
	a.outlive(s, killSchedulers)
}

// iterating puts a model into the repository that runs each request several times.
func (c *cluster) iterating(name, more string) {
	c.t.Helper()
	dir := filepath.Join(c.dir, "models", name)
	if err := os.MkdirAll(filepath.Join(dir, "1"), 0o755); err != nil {
		c.t.Fatal(err)
	}
	text := fmt.Sprintf(`
backend: "echo"
max_batch_size: 8
input { name: "x" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "y" data_type: TYPE_INT32 dims: [ -1 ] }
instance_group { kind: KIND_CPU }
sequence_batching { iterative_sequence: true }
parameters { key: "iterations" value: { string_value: "%d" } }
parameters { key: "execute_us" value: { string_value: "10000" } }
%s`, iterations, more)
	if err := os.WriteFile(filepath.Join(dir, "config.pbtxt"), []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// iterated is what became of the requests of all clients.
type iterated struct {
	t *testing.T

	mu     sync.Mutex
	right  []int // requests of each client that had their results; guarded by mu
	failed int   // guarded by mu
}

// run sends one request after the other until ctx is done, half of the clients over
// HTTP and half in a stream.
func (a *iterated) run(ctx context.Context, client int, target load.Target) {
	ask := func(ctx context.Context, n int) (bool, error) { return overOneCall(ctx, target, n) }
	if client%2 == 1 {
		connection, err := grpc.NewClient(target.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			a.t.Error(err)
			return
		}
		defer connection.Close()
		stream, err := inference.NewGRPCInferenceServiceClient(connection).ModelStreamInfer(context.WithoutCancel(ctx))
		if err != nil {
			a.t.Error(err)
			return
		}
		ask = func(_ context.Context, n int) (bool, error) { return overStream(stream, n) }
	}
	for n := 1; ctx.Err() == nil; n++ {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		right, err := ask(bounded, n)
		cancel()
		if err != nil {
			a.t.Errorf("client %d, request %d: %v", client, n, err)
			return
		}
		a.mu.Lock()
		if right {
			a.right[client]++
		} else {
			a.failed++
		}
		a.mu.Unlock()
	}
}

// overOneCall reports whether a request had its result; otherwise it may be sent again.
// Half of the inputs are too large for the request's descriptor.
func overOneCall(ctx context.Context, target load.Target, n int) (bool, error) {
	size := []int{2, 10_000}[n%2]
	data := strings.TrimSuffix(strings.Repeat(fmt.Sprintf("%d,", n), size), ",")
	body := fmt.Sprintf(`{"inputs":[{"name":"x","datatype":"INT32","shape":[1,%d],"data":[%s]}]}`, size, data)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+target.HTTP+"/v2/models/again/infer", strings.NewReader(body))
	if err != nil {
		return false, err
	}
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	reason := errs.Reason(response.Header.Get("Nereid-Reason"))
	switch {
	case err != nil:
		return false, err
	case reason != "" && reason.GRPC() == errs.SequenceLost.GRPC():
		return false, nil
	case reason != "" || !strings.Contains(string(text), `"data":[`+data+`]`):
		return false, fmt.Errorf("%d %s: %.200s", response.StatusCode, reason, text)
	}
	return true, nil
}

// overStream sends a request and takes its responses, of which there are as many as it
// has iterations, or fewer and then an error.
func overStream(stream inference.GRPCInferenceService_ModelStreamInferClient, n int) (bool, error) {
	value := binary.LittleEndian.AppendUint32(nil, uint32(n)) //nolint:gosec // small
	if err := stream.Send(&inference.ModelInferRequest{
		ModelName: "responds", Id: fmt.Sprint(n), RawInputContents: [][]byte{value},
		Inputs: []*inference.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "INT32", Shape: []int64{1, 1}}},
	}); err != nil {
		return false, err
	}
	for i := 1; ; i++ {
		item, err := stream.Recv()
		if err != nil {
			return false, err
		}
		r := item.GetInferResponse()
		final := r.GetParameters()["triton_final_response"].GetBoolParam()
		switch {
		case r.GetId() != fmt.Sprint(n):
			return false, fmt.Errorf("a response to %q: %v", r.GetId(), item)
		case item.GetErrorMessage() != "":
			return false, nil
		case string(r.GetRawOutputContents()[0]) != string(value) || final != (i == iterations):
			return false, fmt.Errorf("response %d is %v", i, r)
		case final:
			return true, nil
		}
	}
}

// outlive harms the cluster, and waits until all clients have results again.
func (a *iterated) outlive(s *scene, disturb func(*scene) string) {
	a.t.Helper()
	a.mu.Lock()
	a.failed = 0
	a.mu.Unlock()
	victim := disturb(s)
	a.settle()
	a.mu.Lock()
	defer a.mu.Unlock()
	tell(a.t, fmt.Sprintf("iterations, %s: %d requests failed", victim, a.failed))
}

// settle waits until each client has had the result of a request that it sent from now
// on.
func (a *iterated) settle() {
	a.t.Helper()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	a.mu.Lock()
	before := append([]int(nil), a.right...)
	a.mu.Unlock()
	give := time.After(patience)
	for client := 0; client < iterationClients; {
		a.mu.Lock()
		ahead := a.right[client] >= before[client]+2 // one may have been under way
		a.mu.Unlock()
		if ahead {
			client++
			continue
		}
		select {
		case <-poll.C:
			if a.t.Failed() {
				a.t.FailNow()
			}
		case <-give:
			a.t.Fatalf("waited in vain for client %d to have results", client)
		}
	}
}
