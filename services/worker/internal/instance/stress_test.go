package instance_test

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/instance"
)

// erratic answers some requests, some in several responses, some twice and
// some not at all, from Execute or later, and panics at times.
func erratic(random *rand.Rand, later *sync.WaitGroup) func(backend.Batch) {
	answer := func(b backend.Batch, choices []int) {
		b.InputDone()
		for i, c := range choices {
			switch c {
			case 0:
				b.Respond(i, &infer.Response{Final: true})
			case 1:
				b.Respond(i, &infer.Response{})
				b.Respond(i, &infer.Response{Final: true})
				b.Respond(i, &infer.Response{Final: true})
			case 2:
				b.Respond(i, &infer.Response{Err: errs.New(errs.ExecutionFailed, "no")})
			}
		}
		b.Executed()
		b.Done()
	}
	return func(b backend.Batch) {
		b.OnCancel(func() {})
		choices := make([]int, len(b.Requests()))
		for i := range choices {
			choices[i] = random.IntN(4)
		}
		switch random.IntN(4) {
		case 0:
			panic("at times")
		case 1:
			later.Go(func() { answer(b, choices) })
		default:
			answer(b, choices)
		}
	}
}

// Whatever a backend does and whenever clients go, each order has one
// completion and each request one end.
func TestEveryRequestEndsOnce(t *testing.T) {
	const lanes, orders, size, credits = 3, 200, 4, 2
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	h := newHarness(t)
	h.panics = make(chan instance.Panic, lanes*orders)
	var later sync.WaitGroup
	ids := make([]infer.InstanceID, lanes)
	free := make(map[infer.InstanceID]int)
	for i := range ids {
		ids[i] = h.open(&engine{credits: credits, execute: erratic(rand.New(rand.NewPCG(seed, uint64(i))), &later)})
		free[ids[i]] = credits
	}
	random := rand.New(rand.NewPCG(seed, 99))
	completed := make(map[uint64]int)
	take := func() {
		c := <-h.completed
		completed[c.Batch.Number]++
		free[c.Instance] += c.Credits
	}
	for n := range uint64(orders) {
		id := ids[random.IntN(lanes)]
		for free[id] == 0 {
			take()
		}
		free[id]--
		var numbers []uint64
		for k := range uint64(size) {
			numbers = append(numbers, n*size+k+1)
		}
		h.executor.Execute(h.order(n, id, numbers...))
		for range random.IntN(size) {
			order := n - min(n, random.Uint64N(4))
			h.executor.Cancel(batchID(order), request(order*size+1+random.Uint64N(size)))
		}
	}
	for len(completed) < orders {
		take()
	}
	later.Wait()
	for n := range uint64(orders) {
		if completed[n] != 1 {
			t.Errorf("order %d has %d completions", n, completed[n])
		}
	}
	for n := range uint64(orders * size) {
		h.answers(n + 1)
	}
	for id, n := range free {
		if n != credits {
			t.Errorf("instance %v has %d credits at the end, want %d", id, n, credits)
		}
	}
	if _, n := h.batches.Closed(); n != 0 {
		t.Errorf("%d batches are still in the table", n)
	}
}
