package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nereid-serving/nereid/libs/client"
	inferapi "github.com/nereid-serving/nereid/libs/infer"
)

// explanation tells what became of a request.
type explanation struct {
	Request string `arg:"" help:"Id of the request: from the header Nereid-Request-Id, from an error, or the client's own id."`
	JSON    bool   `name:"json" help:"Print JSON."`
	Server  server `embed:""`
}

// Help says how to use it.
func (explanation) Help() string {
	return `Gateways remember their last requests (--explained-requests), and schedulers what they have decided. Any gateway tells where the time of a request went, in which batch it ran, for what it waited, and why it was refused. Under a policy tenants are told of their own requests alone.

Examples:

    nereid explain 1795453010419229-3
    nereid explain my-request --url=gateway:8000 -H 'x-api-key: KEY' --json`
}

// Run explains the request.
func (e *explanation) Run(ctx context.Context, stdout io.Writer) error {
	return e.Server.ask(ctx, func(ctx context.Context, c client.Client) error {
		x, err := c.Explain(ctx, e.Request)
		if err != nil {
			return err
		}
		if e.JSON {
			encoder := json.NewEncoder(stdout)
			encoder.SetIndent("", "  ")
			return encoder.Encode(x)
		}
		return printExplanation(stdout, x)
	})
}

func printExplanation(stdout io.Writer, x *inferapi.Explanation) error {
	seconds := func(s float64) string {
		return time.Duration(s * float64(time.Second)).Round(time.Microsecond).String()
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	line := func(what, format string, args ...any) { fmt.Fprintf(w, what+"\t"+format+"\n", args...) }
	line("request", "%s %s", x.RequestID, x.ID)
	line("model", "%s, version %d, over %s, at %s", x.Model, x.Version, x.Protocol, x.Received.Format(time.RFC3339Nano))
	if x.Tenant != "" {
		line("tenant", "%s, band %s, class %s", x.Tenant, x.Band, cmp.Or(x.Class, "none"))
	}
	line("outcome", "%s", x.Outcome)
	if x.Message != "" {
		line("because", "%s", x.Message)
	}
	if x.RetryAfter > 0 {
		line("retry after", "%s", seconds(x.RetryAfter))
	}
	if x.Deadline > 0 {
		line("deadline", "%s after its arrival", seconds(x.Deadline))
	}
	if x.Cached {
		line("cache", "its response was known")
	}
	if b := x.Batch; b != nil {
		line("batch", "%s of size %d, its own part %d, on instance %d of worker %d", b.ID, b.Size, b.Own, b.Instance, b.Worker)
	}
	switch {
	case x.PredictedCost > 0:
		line("cost", "%.3f cost units, predicted %.3f", x.Cost, x.PredictedCost)
	case x.Cost > 0:
		line("cost", "%.3f cost units", x.Cost)
	}
	line("took", "%s", seconds(x.Total))
	for _, s := range x.Spent {
		line("", "%10s  %s", seconds(s.Seconds), s.What)
	}
	for i := range x.Decisions {
		d := &x.Decisions[i]
		line("pool "+d.Pool, "%s", decision(d, seconds))
	}
	return w.Flush()
}

// decision says how a request, or a step of it, left a scheduler's queue.
func decision(d *inferapi.ExplainedDecision, seconds func(float64) string) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s, version %d", d.Model, d.Version)
	if d.Step > 0 {
		fmt.Fprintf(&s, ", step %d", d.Step)
	}
	fmt.Fprintf(&s, ": after %s %s", seconds(d.Queued), d.What)
	if d.Batch != "" {
		fmt.Fprintf(&s, ", in batch %s of %d requests, %d rows", d.Batch, d.Requests, d.Size)
	}
	if d.WaitedFor != "" {
		fmt.Fprintf(&s, "; for %s an instance was free, and it waited for %s", seconds(d.Waited), d.WaitedFor)
	}
	if d.Predicted > 0 {
		fmt.Fprintf(&s, "; as it came it was expected to be done after %s", seconds(d.Predicted))
	}
	return s.String()
}
