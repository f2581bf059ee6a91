package main

import (
	"context"
	"io"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/top"
	"github.com/nereid-serving/nereid/libs/lifecycle"
)

// live shows what servers do now.
type live struct {
	Metrics []string      `name:"metrics" default:"localhost:8002" placeholder:"HOST:PORT" help:"Ports of metrics: of nereid serve, or of the gateways and schedulers of a cluster."`
	Every   time.Duration `name:"every" default:"1s" help:"Refresh interval."`
	Once    bool          `name:"once" help:"Print the result once, after that time."`
}

// Help says what is shown.
func (live) Help() string {
	return `For each model and each tenant: requests a second, how many of them are good, in time and without an error, and why the others are not; how large batches are, how many requests wait, and how much device time a tenant uses (a cost unit is a millisecond). The q key ends it.

Examples:

    nereid top
    nereid top --metrics=gateway-0:8002,gateway-1:8002,scheduler:8012
    nereid top --once`
}

// Run shows it.
func (l *live) Run(ctx context.Context, stdout io.Writer) error {
	if out, ok := stdout.(*os.File); ok && !l.Once && term.IsTerminal(int(out.Fd())) { //nolint:gosec // a file's descriptor is an int
		return top.Live(ctx, os.Stdin, stdout, l.Metrics, l.Every)
	}
	before, err := top.Read(ctx, l.Metrics)
	if err != nil {
		return err
	}
	lifecycle.Pause(ctx, l.Every)
	after, err := top.Read(ctx, l.Metrics)
	if err != nil {
		return err
	}
	return top.Print(stdout, before, after)
}
