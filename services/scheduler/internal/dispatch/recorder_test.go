package dispatch_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/scheduler/core"
	"github.com/nereid-serving/nereid/services/scheduler/decisionlog"
	"github.com/nereid-serving/nereid/services/scheduler/internal/dispatch"
	"github.com/nereid-serving/nereid/services/scheduler/internal/stats"
)

// TestTheLogOfALoopCanBeReplayed has requests come from several goroutines, run
// on a worker, be canceled and miss deadlines, and holds that a new core decides
// the same by what was logged.
func TestTheLogOfALoopCanBeReplayed(t *testing.T) {
	const posters, each = 4, 300
	path := filepath.Join(t.TempDir(), "log")
	written := record(t, path, func(l *dispatch.Loop, a *answers, w *worker) {
		stop := make(chan struct{})
		var working sync.WaitGroup
		working.Go(func() {
			for {
				select {
				case o := <-w.orders:
					w.finish(o)
				case <-stop:
					return
				}
			}
		})
		clock := mono.New() // as the loop's, but for the moment in between
		for p := range posters {
			working.Go(func() {
				for i := range each {
					r := request(uint64(p*each+i+1), &counter{})
					if i%3 == 0 {
						r.Deadline = clock.Now().Add(time.Duration(i) * 10 * time.Microsecond)
					}
					if err := l.Submit(r); err != nil {
						t.Error(err)
					}
					if i%7 == 0 {
						l.Cancel(r.Work.Request)
					}
				}
			})
		}
		for range posters * each {
			<-a.came
		}
		close(stop)
		working.Wait()
	})
	if written == 0 {
		t.Fatal("nothing is written")
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r, err := decisionlog.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	c := core.New(core.Config{})
	var s decisionlog.Step
	for n := 0; ; n++ {
		if err := r.Next(&s); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		var logged []core.Decision
		for _, d := range s.Decisions {
			logged = append(logged, d.Decision)
		}
		decided := c.Step(s.Now, &s.Event)
		if diff := cmp.Diff(logged, decided, cmpopts.IgnoreUnexported(core.Decision{}), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("step %d (-logged +replayed):\n%s", n, diff)
		}
	}
	if got := c.Counts(); got.Submitted != posters*each || got.Completed == 0 || c.InFlight() != 0 {
		t.Errorf("the replay has %+v and %d in flight, want %d submitted", got, c.InFlight(), posters*each)
	}
}

// record has f use a loop with one model and one worker whose steps are logged,
// and returns how many bytes the log has.
func record(t *testing.T, path string, f func(*dispatch.Loop, *answers, *worker)) int64 {
	log := decisionlog.New(decisionlog.Config{Path: path, Log: zap.NewNop()})
	if err := log.Open(); err != nil {
		t.Fatal(err)
	}
	a, store := newAnswers(), &store{asked: make(chan struct{}, 100)}
	l, err := dispatch.New(core.Config{}, dispatch.Deps{
		Clock: mono.New(), Responder: a, Stats: stats.NewSet(stats.DefaultLatencies()), Members: store, Recorders: []dispatch.Recorder{log},
	})
	if err != nil {
		t.Fatal(err)
	}
	store.loop = l
	ctx, cancel := context.WithCancel(t.Context())
	var running, writing sync.WaitGroup
	running.Go(func() {
		if err := l.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	over, end := context.WithCancel(t.Context())
	writing.Go(func() { log.Run(over) })
	l.BecomeLeader(9, core.History{}, 0)
	w := newWorker(l, a)
	l.Configure(model, &modelconfig.Config{Name: "m", MaxBatchSize: 8, Batching: &modelconfig.DynamicBatching{}})
	l.Attach(slot0.Worker, infer.Held{}, w)
	l.Grant(infer.Grant{Instance: slot0, Model: model, Credits: 1})
	f(l, a, w)
	cancel()
	running.Wait()
	end()
	writing.Wait()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}
