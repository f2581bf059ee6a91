package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/overview"
	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/process"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// status shows the whole cluster.
type status struct {
	URL      string        `name:"url" placeholder:"HOST:PORT" help:"Address of a gateway's gRPC port, or of a registry (localhost:8001)."`
	Output   string        `name:"output" short:"o" default:"text" enum:"text,json" help:"How to show it: text or json."`
	Watch    bool          `name:"watch" help:"Refresh until Ctrl-C."`
	Interval time.Duration `name:"interval" default:"2s" help:"How long to wait in between, such as 500ms."`
	Caller   caller        `embed:""`
}

// Help shows examples.
func (status) Help() string {
	return `The exit status is 0 only if all is well, so that a script can wait for it. The call is one of the API
model-repository: where that is restricted, give its header.

Examples:

    nereid status
    nereid status --url gateway:8001 --watch
    nereid status --url registry:8031 --tls-root ca.pem --tls-cert me.pem --tls-key me.key
    until nereid status --output json > status.json; do sleep 1; done`
}

// Run prints the cluster's state.
func (s *status) Run(ctx context.Context, stdout io.Writer) error {
	if !s.Watch {
		return s.show(ctx, stdout)
	}
	for ctx.Err() == nil {
		fmt.Fprintf(stdout, "%s\n", time.Now().Format(time.DateTime))
		if err := s.show(ctx, stdout); err != nil && ctx.Err() == nil {
			fmt.Fprintln(stdout, process.Message(err))
		}
		fmt.Fprintln(stdout)
		lifecycle.Pause(ctx, s.Interval)
	}
	return nil
}

// statusPatience is for how long a response is awaited without --timeout: longer
// than the server waits for others, so that it can name them.
const statusPatience = 20 * time.Second

// show asks once. The error is also that not all is well.
func (s *status) show(ctx context.Context, stdout io.Writer) error {
	secured, err := s.Caller.tls()
	if err != nil {
		return err
	}
	limited := s.Caller
	limited.Timeout = cmp.Or(limited.Timeout, statusPatience)
	ctx, cancel := limited.limit(ctx)
	defer cancel()
	_, address, found := strings.Cut(s.URL, "://")
	if !found {
		address = cmp.Or(s.URL, "localhost:8001")
	}
	c, err := control.Status(ctx, address, s.Caller.headers(), control.Options{TLS: secured})
	if err != nil {
		return withHint(err)
	}
	if err := s.print(stdout, c); err != nil {
		return err
	}
	return overview.Unwell(c)
}

func (s *status) print(stdout io.Writer, c *nereidv1.ClusterStatus) error {
	if s.Output == "text" {
		return overview.Print(stdout, c)
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(c)
	if err != nil {
		return err
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, text, "", "  "); err != nil {
		return err
	}
	indented.WriteByte('\n')
	_, err = stdout.Write(indented.Bytes())
	return err
}
