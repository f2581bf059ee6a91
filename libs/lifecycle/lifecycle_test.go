package lifecycle_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/nereid-serving/nereid/libs/lifecycle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// journal records events in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) record(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

// part runs until it is stopped, and records that.
func (j *journal) part(name string, started chan<- struct{}, err error) lifecycle.Part {
	return lifecycle.Part{Name: name, Run: func(ctx context.Context) error {
		started <- struct{}{}
		<-ctx.Done()
		j.record("stopped " + name)
		return err
	}}
}

func TestStopsInReverse(t *testing.T) {
	var j journal
	started := make(chan struct{}, 3)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for range 3 {
			<-started
		}
		cancel()
	}()
	if err := lifecycle.Run(ctx, j.part("bus", started, nil), j.part("worker", started, nil), j.part("gateway", started, nil)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"stopped gateway", "stopped worker", "stopped bus"}, j.lines); diff != "" {
		t.Error(diff)
	}
}

func TestFailureStopsTheOthersAndIsTheCause(t *testing.T) {
	var j journal
	started := make(chan struct{}, 2)
	broken := errors.New("broken")
	failing := lifecycle.Part{Name: "worker", Run: func(context.Context) error {
		<-started
		<-started
		return broken
	}}
	err := lifecycle.Run(context.Background(), j.part("bus", started, nil), failing, j.part("gateway", started, errors.New("later")))
	if !errors.Is(err, broken) || err.Error() != "worker: broken" {
		t.Errorf("cause %v, want worker: broken", err)
	}
	if diff := cmp.Diff([]string{"stopped gateway", "stopped bus"}, j.lines); diff != "" {
		t.Error(diff)
	}
}

func TestPartThatEndsByItselfIsAFailure(t *testing.T) {
	err := lifecycle.Run(context.Background(), lifecycle.Part{Name: "bus", Run: func(context.Context) error { return nil }})
	if !errors.Is(err, lifecycle.ErrEnded) {
		t.Errorf("%v, want %v", err, lifecycle.ErrEnded)
	}
}
