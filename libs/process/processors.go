package process

import (
	"context"

	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/procs"
)

// Processors is the part that limits a process without code in C to one processor while it has
// little to do: see [procs.Procs].
func Processors() lifecycle.Part {
	return lifecycle.Part{Name: "processors", Run: func(ctx context.Context) error {
		procs.New(0).Run(ctx)
		return nil
	}}
}
