package instance_test

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// window is how many responses a client may leave unread before their sender is
// held, and windowBytes how many bytes of them.
const (
	window      = 128
	windowBytes = 4 << 20
)

// room reports whether a request has room for one more response.
func room(b backend.Batch, i int) bool {
	synctest.Wait()
	select {
	case <-b.Room(i):
		return true
	default:
		return false
	}
}

// windows runs check with a batch of two requests whose clients do not read.
func windows(t *testing.T, check func(h *harness, b backend.Batch)) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		running := make(chan backend.Batch, 1)
		id := h.open(&engine{execute: func(b backend.Batch) { running <- b }})
		h.executor.Execute(h.order(1, id, 1, 2))
		b := <-running
		b.Free()
		check(h, b)
		b.Done()
	})
}

func TestUnreadResponsesHoldTheirOwnRequest(t *testing.T) {
	windows(t, func(h *harness, b backend.Batch) {
		for n := range window {
			if !room(b, 0) {
				t.Fatalf("no room for response %d", n)
			}
			b.Respond(0, &infer.Response{})
		}
		if room(b, 0) || !room(b, 1) {
			t.Errorf("room is %t and %t, want it for the other request alone", room(b, 0), room(b, 1))
		}
		for n := range window / 2 {
			if room(b, 0) {
				t.Fatalf("room after %d responses were read", n)
			}
			h.responses[1][n].Release()
			h.responses[1][n].Release() // counts once
		}
		if !room(b, 0) {
			t.Error("no room after half was read")
		}
	})
}

func TestLargeResponsesFillTheWindow(t *testing.T) {
	windows(t, func(h *harness, b backend.Batch) {
		b.Respond(0, &infer.Response{Outputs: []infer.Tensor{{Data: tensor.InHeap(make([]byte, 2*windowBytes))}}})
		if room(b, 0) {
			t.Error("room beside a large response")
		}
		h.responses[1][0].Release()
		if !room(b, 0) {
			t.Error("no room after it was read")
		}
	})
}

// The release of a response is told at each half of a window, so that of requests
// with few responses nothing is told.
func TestReleasesAreToldAtHalfAWindow(t *testing.T) {
	windows(t, func(h *harness, b backend.Batch) {
		for range window {
			b.Respond(0, &infer.Response{})
		}
		for range 3 {
			b.Respond(1, &infer.Response{Outputs: []infer.Tensor{{Data: tensor.InHeap(make([]byte, windowBytes/4))}}})
		}
		for number, want := range map[uint64][]int{1: {window/2 - 1, window - 1}, 2: {1}} {
			var told []int
			for i, r := range h.responses[number] {
				if r.OnRelease != nil {
					told = append(told, i)
				}
			}
			if !slices.Equal(told, want) {
				t.Errorf("the release of responses %v to request %d is told, want %v", told, number, want)
			}
		}
	})
}

// Whatever ends a request lets its sender go.
func TestSendersOfRequestsThatEndAreReleased(t *testing.T) {
	for name, end := range map[string]func(h *harness, b backend.Batch){
		"canceled": func(h *harness, _ backend.Batch) { h.executor.Cancel(batchID(1), request(1)) },
		"responded": func(_ *harness, b backend.Batch) {
			b.Respond(0, &infer.Response{Err: errs.New(errs.ExecutionFailed, "no")})
		},
		"forgotten": func(_ *harness, b backend.Batch) { b.Done() },
	} {
		for when, late := range map[string]bool{"": false, " before it asks": true} {
			t.Run(name+when, func(t *testing.T) {
				windows(t, func(h *harness, b backend.Batch) {
					fill := func() {
						for range window {
							b.Respond(0, &infer.Response{})
						}
					}
					if late {
						end(h, b)
						fill()
					} else {
						fill()
						held := b.Room(0)
						end(h, b)
						<-held
					}
					if name != "forgotten" && !room(b, 0) {
						t.Error("a request that has ended has no room")
					}
				})
			})
		}
	}
}
