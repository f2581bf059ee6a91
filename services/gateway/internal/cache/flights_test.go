package cache_test

import (
	"bytes"
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/gateway/internal/cache"
)

func shared(r *infer.Request) cache.Model { return cache.Model{Content: content(r), Shared: true} }

// client is one request of a random history.
type client struct {
	input byte
	// yields are how often it gives way before it looks, executes and ends.
	yields [3]int
	fails  bool // its execution does
	leaves bool // before its response
}

func clients() *rapid.Generator[client] {
	return rapid.Custom(func(t *rapid.T) (c client) {
		c.input = rapid.ByteRange(0, 1).Draw(t, "input")
		for i := range c.yields {
			c.yields[i] = rapid.IntRange(0, 20).Draw(t, "yields")
		}
		c.fails, c.leaves = rapid.IntRange(0, 4).Draw(t, "fails") == 0, rapid.IntRange(0, 4).Draw(t, "leaves") == 0
		return c
	})
}

func yield(n int) {
	for range n {
		runtime.Gosched()
	}
}

// Whatever becomes of others, each request that stays has its own response in the end
// or its own failure, and of equal requests one is executed at a time.
func TestRequestsShareExecutionsInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var executions [2]atomic.Int32
		c := cache.New(nil, ignored)
		var working sync.WaitGroup
		for _, one := range rapid.SliceOfN(clients(), 1, 30).Draw(t, "clients") {
			working.Go(func() {
				ctx, leave := context.WithCancel(context.Background())
				defer leave()
				r := request()
				r.Inputs[0] = input("a", one.input)
				yield(one.yields[0])
				l, hit := c.Look(shared(r), r)
				defer l.Close()
				if hit != nil {
					t.Error("a hit of no store")
				}
				if one.leaves {
					working.Go(func() { yield(one.yields[1]); leave() })
				}
				if l.Pending() {
					hit = l.Find(ctx)
				}
				switch {
				case hit != nil:
					if data, _ := hit.Outputs[0].Data.Bytes(); !hit.Final || !bytes.Equal(data, []byte{one.input}) {
						t.Errorf("the response to %d is %v", one.input, data)
					}
					hit.Release()
					return
				case ctx.Err() != nil:
					return
				}
				if executions[one.input].Add(1) != 1 {
					t.Error("equal requests are executed at once")
				}
				yield(one.yields[2])
				executions[one.input].Add(-1)
				p := &infer.Response{Final: true, Outputs: []infer.Tensor{input("y", one.input)}}
				switch {
				case one.leaves: // without a response
				case one.fails:
					l.Observer()(infer.Fail(r.Work, errs.New(errs.ExecutionFailed, "no")))
				default:
					l.Observer()(p)
				}
			})
		}
		working.Wait()
	})
}

func TestFollowersDoNotRetainTheWorkersMemory(t *testing.T) {
	c := cache.New(nil, ignored)
	leader, _ := c.Look(shared(request()), request())
	follower, _ := c.Look(shared(request()), request())
	if leader.Pending() || !follower.Pending() {
		t.Fatalf("the first request waits: %t, the second: %t", leader.Pending(), follower.Pending())
	}
	p := &infer.Response{Final: true, Outputs: []infer.Tensor{input("y", 1)}}
	leader.Observer()(p)
	p.Release()
	hit := follower.Find(t.Context())
	if data, _ := hit.Outputs[0].Data.Bytes(); !bytes.Equal(data, []byte{1}) {
		t.Errorf("a follower has %v", data)
	}
	hit.Release()
	leader.Close()
	follower.Close()
	if next, _ := c.Look(shared(request()), request()); next.Pending() {
		t.Error("a request follows one that is over")
	} else {
		next.Close()
	}
}

func TestResponsesInPartsAreNotShared(t *testing.T) {
	c := cache.New(nil, ignored)
	leader, _ := c.Look(shared(request()), request())
	follower, _ := c.Look(shared(request()), request())
	leader.Observer()(&infer.Response{Outputs: []infer.Tensor{input("y", 1)}})
	if hit := follower.Find(t.Context()); hit != nil || follower.Pending() {
		t.Errorf("a follower has %+v", hit)
	}
	leader.Close()
	follower.Close()
}
