package lifecycle_test

import (
	"context"
	"fmt"

	"github.com/nereid-serving/nereid/libs/lifecycle"
)

// The parts of a process stop in reverse: the gateway finishes its requests while
// the worker still runs.
func ExampleRun() {
	ctx, stop := context.WithCancel(context.Background())
	started := make(chan string)
	part := func(name string) lifecycle.Part {
		return lifecycle.Part{Name: name, Run: func(ctx context.Context) error {
			started <- name
			<-ctx.Done()
			fmt.Println(name, "stops")
			return nil
		}}
	}
	go func() {
		<-started
		<-started
		stop() // as a signal does
	}()
	if err := lifecycle.Run(ctx, part("worker"), part("gateway")); err != nil {
		fmt.Println(err)
	}
	// Output:
	// gateway stops
	// worker stops
}

// Functions may be added to a group before and while it runs.
func ExampleDynamicGroup() {
	ctx, stop := context.WithCancel(context.Background())
	group := lifecycle.NewDynamicGroup()
	group.Add(func(context.Context) error {
		fmt.Println("first")
		group.Add(func(context.Context) error {
			fmt.Println("second")
			stop()
			return nil
		})
		return nil
	})
	if err := group.Run(ctx); err != nil {
		fmt.Println(err)
	}
	// Output:
	// first
	// second
}
