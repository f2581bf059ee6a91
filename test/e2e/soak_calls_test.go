package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// asker answers with the sum of what it was asked for calls of: eight calls at a time
// over asyncio, of models in the server and in Python, one by one, of a model that
// answers twice, with tensors of 256 KiB, and of a model that does not exist.
const asker = `import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


def ask(model, x):
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=["y"], inputs=[pb_utils.Tensor("x", x)])


class TritonPythonModel:
    async def execute(self, requests):
        return await asyncio.gather(*(self.answer(r) for r in requests))

    async def answer(self, request):
        x = request.inputs()[0].as_numpy()
        gathered = await asyncio.gather(*(ask(model, x).async_exec() for model in ("quick", "plain") * 4))
        one = ask("quick", x).exec()
        streamed = [r async for r in await ask("twice", x).async_exec(decoupled=True)]
        big = np.full(1 << 18, x.flat[0] % 251, np.uint8)
        large = await ask("big", big).async_exec()
        unknown = await ask("nobody", x).async_exec()
        if not unknown.has_error():
            return failed("a model that does not exist answers")
        for r in [*gathered, one, *streamed, large]:
            if r.has_error():
                return failed(r.error().message())
        values = [r.output_tensors()[0].as_numpy() for r in [*gathered, one, *streamed] if r.output_tensors()]
        if len(values) != 11 or any(not np.array_equal(v, x) for v in values):
            return failed("%d of 11 calls have the answer" % len([v for v in values if np.array_equal(v, x)]))
        if not np.array_equal(large.output_tensors()[0].as_numpy(), big):
            return failed("a large tensor is another's")
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])


def failed(text):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text))
`

const plain = `import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy())]) for r in requests]
`

const twice = `import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            sender, x = r.get_response_sender(), r.inputs()[0].as_numpy()
            for _ in range(2):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
`

// soakedCalls are the models of the soak of calls.
func soakedCalls(t *testing.T) *server {
	t.Helper()
	scripted := func(instances int, more string) string {
		return fmt.Sprintf(`
backend: "python"
max_batch_size: 0
input [{ name: "x" data_type: TYPE_INT32 dims: [1, 1] }]
output [{ name: "y" data_type: TYPE_INT32 dims: [1, 1] }]
instance_group [{ count: %d kind: KIND_CPU }]
%s
`, instances, more)
	}
	big := `
backend: "echo"
input [{ name: "x" data_type: TYPE_UINT8 dims: [-1] }]
output [{ name: "y" data_type: TYPE_UINT8 dims: [-1] }]
instance_group [{ count: 1 kind: KIND_CPU }]
`
	return start(t, repository(t, map[string]string{
		"asker/config.pbtxt": scripted(2, ""), "asker/1/model.py": asker,
		"plain/config.pbtxt": scripted(1, ""), "plain/1/model.py": plain,
		"twice/config.pbtxt": scripted(1, "model_transaction_policy { decoupled: true }"), "twice/1/model.py": twice,
		"quick/config.pbtxt": echo(0), "quick/1/.keep": "",
		"big/config.pbtxt": big, "big/1/.keep": "",
	}), "--log-warning=false")
}

// mostGrowth is how many bytes more may be resident in the last quarter of a soak than in
// the quarter after the first, in the server and its Python processes together: pools
// and interpreters keep some of what they had at their busiest moment.
const mostGrowth = 48 << 20

// TestSoakCalls has eight clients ask a model that calls others, for NEREID_SOAK_CALLS.
// Each answer is right; and once all has warmed up, no more memory is resident at the end
// than before.
func TestSoakCalls(t *testing.T) {
	text := os.Getenv("NEREID_SOAK_CALLS")
	if text == "" {
		t.Skip("takes half an hour: run make soak-calls")
	}
	lasts, err := time.ParseDuration(text)
	if err != nil || lasts < time.Minute {
		t.Fatalf("NEREID_SOAK_CALLS is %q: want a duration of a minute or more", text)
	}
	s := soakedCalls(t)
	before := s.vitals()
	c := newCaller(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	var answered, failures atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		inParallel(8, 8, func(int) {
			for ctx.Err() == nil && failures.Load() < 20 {
				if status := c.overHTTP(t.Context(), "asker", `{"inputs":[{"name":"x","datatype":"INT32","shape":[1,1],"data":[7]}]}`); status != http.StatusOK {
					failures.Add(1)
					t.Errorf("after %d requests: status %d", answered.Load(), status)
				}
				answered.Add(1)
			}
		})
	}()
	quarters := watchResident(t, s, ended, lasts)
	c.close()
	after := s.settles(before)
	t.Logf("%d requests, twelve calls each; resident in each quarter: %v MiB; %v", answered.Load(), mebibytes(quarters), after)
	if growth := quarters[3] - quarters[1]; growth > mostGrowth {
		t.Errorf("%d MiB more are resident in the last quarter than in the second, want at most %d", growth>>20, mostGrowth>>20)
	}
}

// watchResident returns how much of the server and its Python processes was resident in each
// quarter of a time, in bytes: the median of what was seen each second.
func watchResident(t *testing.T, s *server, ended <-chan struct{}, lasts time.Duration) (quarters [4]int64) {
	t.Helper()
	var seen [4][]int64
	began, tick := time.Now(), time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			for i, list := range seen {
				if len(list) == 0 {
					t.Fatal("the soak ended early")
				}
				slices.Sort(list)
				quarters[i] = list[len(list)/2]
			}
			return quarters
		case <-tick.C:
			at := min(int(4*time.Since(began)/lasts), 3)
			resident := int64(0)
			for _, p := range s.all {
				for _, pid := range append(childrenOf(t, p.command.Process.Pid), p.command.Process.Pid) {
					resident += residentOf(t, pid)
				}
			}
			seen[at] = append(seen[at], resident)
		}
	}
}

func mebibytes(list [4]int64) (in [4]int64) {
	for i, n := range list {
		in[i] = n >> 20
	}
	return in
}
