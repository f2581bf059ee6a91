package lifecycle_test

import (
	"context"
	"errors"
	"testing"

	"github.com/nereid-serving/nereid/libs/lifecycle"
)

func TestDynamicGroupRunsEachOnceWheneverItComes(t *testing.T) {
	g := lifecycle.NewDynamicGroup()
	begun := make(chan string, 3)
	part := func(name string) func(context.Context) error {
		return func(ctx context.Context) error {
			begun <- name
			<-ctx.Done()
			return nil
		}
	}
	g.Add(part("before"))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	if name := <-begun; name != "before" {
		t.Errorf("%q runs first", name)
	}
	g.Add(part("after"))
	if name := <-begun; name != "after" {
		t.Errorf("%q runs second", name)
	}
	cancel()
	if err := <-ended; err != nil || len(begun) != 0 {
		t.Errorf("ended with %v; %d ran again", err, len(begun))
	}
}

func TestDynamicGroupEndsWithTheFirstFailure(t *testing.T) {
	g := lifecycle.NewDynamicGroup()
	broken := errors.New("broken")
	g.Add(func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	})
	g.Add(func(context.Context) error { return broken })
	if err := g.Run(t.Context()); !errors.Is(err, broken) {
		t.Errorf("ended with %v, want %v", err, broken)
	}
}
