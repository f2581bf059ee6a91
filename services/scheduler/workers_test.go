package scheduler

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
)

func TestWorkersAreGoneOnce(t *testing.T) {
	const first, second = 7, 9
	for name, tt := range map[string]struct {
		happen func(*workers)
		want   []string
	}{
		"a lease that ends while the stream is there": {
			func(w *workers) {
				w.lease("w", holding{first, 1}, false)
				w.connect(first)
				w.lease("w", holding{0, 2}, false)
				w.lease("w", holding{first, 3}, false)
				w.disconnect(first)
			}, nil,
		},
		"first the stream, then the lease": {
			func(w *workers) {
				w.lease("w", holding{first, 1}, false)
				for range 3 {
					w.connect(first)
					w.disconnect(first)
				}
				w.lease("w", holding{0, 2}, false)
			}, []string{"7 died"},
		},
		"first the lease, then the stream": {
			func(w *workers) {
				w.lease("w", holding{first, 1}, false)
				w.connect(first)
				w.lease("w", holding{0, 2}, false)
				w.disconnect(first)
				w.connect(first)
				w.disconnect(first)
			}, []string{"7 died"},
		},
		"a stream without a lease": {func(w *workers) { w.connect(first); w.disconnect(first) }, []string{"7 died"}},
		"a stream before its lease": {
			func(w *workers) {
				w.connect(first)
				w.disconnect(first)
				w.lease("w", holding{first, 1}, false)
			}, nil,
		},
		"another life": {
			func(w *workers) {
				w.lease("w", holding{first, 1}, false)
				w.connect(first)
				w.lease("w", holding{second, 2}, false)
				w.disconnect(first)
			}, []string{"7 died"},
		},
		"another life of one that was missing": {
			func(w *workers) {
				w.lease("w", holding{first, 1}, false)
				w.lease("w", holding{0, 2}, false)
				w.lease("w", holding{second, 3}, false)
			}, []string{"7 died", "7 ended"},
		},
		"a lease that is taken again": {
			func(w *workers) {
				w.lease("w", holding{first, 1}, false)
				w.lease("w", holding{0, 2}, false)
				w.lease("w", holding{first, 3}, false)
			}, []string{"7 died"},
		},
		"what is heard late": {
			func(w *workers) {
				w.lease("w", holding{second, 3}, false)
				w.lease("w", holding{first, 1}, false)
				w.lease("w", holding{0, 2}, false)
			}, nil,
		},
		"a worker that stops": {
			func(w *workers) {
				w.lease("w", holding{first, 1}, false)
				w.connect(first)
				w.disconnect(first)
				w.lease("w", holding{0, 2}, true)
			}, []string{"7 ended"},
		},
		"a worker that stops, of whose lease is heard first": {
			func(w *workers) {
				w.lease("w", holding{first, 1}, false)
				w.connect(first)
				w.lease("w", holding{0, 2}, true)
				w.disconnect(first)
			}, []string{"7 ended"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got []string
				w := newWorkers("p", func(worker uint64, news bool) {
					got = append(got, fmt.Sprint(worker, map[bool]string{true: " died", false: " ended"}[news]))
				}, zap.NewNop())
				tt.happen(w)
				<-time.After(2 * absence)
				synctest.Wait() // for who was told
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A new term waits for all that may run a request of the term before.
func TestWhoIsWaitedFor(t *testing.T) {
	const first, second, other = 7, 9, 11
	ended := func(w *workers) {
		w.lease("w", holding{first, 1}, false)
		w.lease("w", holding{0, 2}, false)
	}
	for name, tt := range map[string]struct {
		happen func(*workers)
		want   []uint64
		blind  bool
	}{
		"nobody is there": {func(*workers) {}, nil, false},
		"by leases and streams": {
			func(w *workers) {
				w.lease("w", holding{first, 1}, false)
				w.connect(other)
			}, []uint64{first, other}, false,
		},
		"a lease has ended": {ended, []uint64{first}, false},
		"it was taken again": {
			func(w *workers) {
				ended(w)
				w.lease("w", holding{first, 3}, false)
			}, []uint64{first}, false,
		},
		"a stream has ended, and no lease was heard of": {
			func(w *workers) {
				w.connect(first)
				w.disconnect(first)
			}, []uint64{first}, false,
		},
		"a lease ended long ago": {
			func(w *workers) {
				ended(w)
				<-time.After(2 * unnoticed)
			}, nil, false,
		},
		"another life holds the lease before it has ended": {
			func(w *workers) {
				w.lease("w", holding{first, 1}, false)
				w.lease("w", holding{second, 2}, false)
			}, []uint64{second}, true,
		},
		"another life holds it after that": {
			func(w *workers) {
				ended(w)
				w.lease("w", holding{second, 3}, false)
			}, []uint64{second}, true,
		},
		"the life before ended long ago": {
			func(w *workers) {
				w.lease("w", holding{first, 1}, false)
				w.lease("w", holding{second, 2}, false)
				<-time.After(2 * unnoticed)
			}, []uint64{second}, false,
		},
		"a worker has stopped": {
			func(w *workers) {
				w.lease("w", holding{first, 1}, false)
				w.lease("w", holding{0, 2}, true)
			}, nil, false,
		},
		"a worker has stopped and come back": {
			func(w *workers) {
				w.lease("w", holding{first, 1}, false)
				w.lease("w", holding{0, 2}, true)
				w.lease("w", holding{second, 3}, false)
			}, []uint64{second}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorkers("p", func(uint64, bool) {}, zap.NewNop())
				tt.happen(w)
				got, blind := w.expected()
				slices.Sort(got)
				if diff := cmp.Diff(tt.want, got); diff != "" || blind != tt.blind {
					t.Errorf("blind %v, want %v; (-want +got):\n%s", blind, tt.blind, diff)
				}
			})
		})
	}
}
