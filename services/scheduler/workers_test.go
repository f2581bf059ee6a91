package scheduler

import (
	"fmt"
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
				w.lease("w", first, false)
				w.connect(first)
				w.lease("w", 0, false)
				w.lease("w", first, false)
				w.disconnect(first)
			}, nil,
		},
		"first the stream, then the lease": {
			func(w *workers) {
				w.lease("w", first, false)
				for range 3 {
					w.connect(first)
					w.disconnect(first)
				}
				w.lease("w", 0, false)
			}, []string{"7 died"},
		},
		"first the lease, then the stream": {
			func(w *workers) {
				w.lease("w", first, false)
				w.connect(first)
				w.lease("w", 0, false)
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
				w.lease("w", first, false)
			}, nil,
		},
		"another life": {
			func(w *workers) {
				w.lease("w", first, false)
				w.connect(first)
				w.lease("w", second, false)
				w.disconnect(first)
			}, []string{"7 died"},
		},
		"a worker that stops": {
			func(w *workers) {
				w.lease("w", first, false)
				w.connect(first)
				w.disconnect(first)
				w.lease("w", 0, true)
			}, []string{"7 left"},
		},
		"a worker that stops, of whose lease is heard first": {
			func(w *workers) {
				w.lease("w", first, false)
				w.connect(first)
				w.lease("w", 0, true)
				w.disconnect(first)
			}, []string{"7 left"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got []string
				w := newWorkers("p", func(worker uint64, died bool) {
					got = append(got, fmt.Sprint(worker, map[bool]string{true: " died", false: " left"}[died]))
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
