package process

import (
	"context"

	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/procs"
)

// Processors is the part of a process that runs nothing in C, by which it has one
// processor while it has little to do: see [procs.Procs].
func Processors() lifecycle.Part {
	return lifecycle.Part{Name: "processors", Run: func(ctx context.Context) error {
		procs.New(0).Run(ctx)
		return nil
	}}
}
