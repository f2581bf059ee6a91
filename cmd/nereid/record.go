package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/recording"
)

// recorder records the requests of a server.
type recorder struct {
	Models  []string      `arg:"" optional:"" name:"model" help:"Models to record: names, or patterns such as text_*; the default is all."`
	Out     string        `name:"out" short:"o" required:"" placeholder:"FILE" help:"File to write, or a URL of an object store, such as s3://bucket/requests.rec; - is the standard output."`
	For     time.Duration `name:"for" default:"60s" help:"How long to record."`
	Bytes   int64         `name:"max-bytes" default:"1073741824" help:"How many bytes to record at most, before compression."`
	Share   float64       `name:"share" default:"1" help:"Fraction of the requests to record, such as 0.1. Sequences are recorded completely or not at all."`
	Tenants []string      `name:"tenant" sep:"none" placeholder:"NAME" help:"Tenants to record, as names or patterns; repeat the flag for several."`
	Answers bool          `name:"answers" help:"Record the responses too, so that perf --trace --verify can compare them."`
	URL     string        `name:"url" placeholder:"HOST:PORT" help:"HTTP address of the server (localhost:8000)."`
	Caller  caller        `embed:""`
}

// Help shows examples.
func (recorder) Help() string {
	return `The server must be started with --allow-recording=true; under a policy the caller needs the API recording, and a tier says what recordings have of its tenants' requests. A gateway records the requests that it receives itself. docs/guides/record.md describes the file.

Examples:

    nereid record -o requests.rec
    nereid record digits --for 10m --share 0.1 --answers -o digits.rec
    nereid record -o s3://bucket/requests.rec
    nereid perf --trace digits.rec --speed 2`
}

// Validate refuses what cannot be.
func (r *recorder) Validate() error {
	switch {
	case r.For <= 0 || r.Bytes < 1:
		return errs.New(errs.ConfigInvalid, "--for=%v --max-bytes=%d: want more than 0", r.For, r.Bytes)
	case !(r.Share > 0 && r.Share <= 1):
		return errs.New(errs.ConfigInvalid, "--share=%v: want more than 0, and 1 at most", r.Share)
	}
	return nil
}

// Run records until the bounds are reached or it is interrupted.
func (r *recorder) Run(ctx context.Context) (err error) {
	s := server{URL: r.URL, Protocol: "http", Caller: r.Caller}
	c, err := s.client()
	if err != nil {
		return err
	}
	defer c.Close()
	in, err := c.Record(ctx, &client.RecordRequest{Models: r.Models, Tenants: r.Tenants, Share: r.Share, MaxBytes: r.Bytes, Seconds: r.For.Seconds(), Answers: r.Answers})
	if err != nil {
		return withHint(err)
	}
	defer in.Close()
	out, err := createFile(context.WithoutCancel(ctx), "--out", r.Out) // after the server has agreed
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	// What is written is read on the way, to tell what the recording has.
	piped, pipe := io.Pipe()
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.MultiWriter(out, pipe), in)
		copied <- err
		_ = pipe.Close()
	}()
	seen := r.count(piped)
	if _, err := io.Copy(io.Discard, piped); err != nil { // after a part that cannot be read
		return err
	}
	err = <-copied
	fmt.Fprintln(os.Stderr, seen) // the standard output may be the recording
	switch {
	case ctx.Err() != nil:
		return errs.New(errs.Canceled, "interrupted: %s has what was recorded until then", r.Out)
	case err != nil:
		return errs.Wrap(errs.StateUnavailable, err, "the recording was cut off, and has what came before: %v", err)
	}
	return nil
}

// count reads a recording and says what it has.
func (r *recorder) count(in io.Reader) string {
	reader, err := recording.NewReader(in)
	if err != nil {
		return "nothing was recorded"
	}
	defer reader.Close()
	requests := 0
	for {
		part, err := reader.Next()
		if err != nil {
			return fmt.Sprintf("%d requests, cut off", requests)
		}
		if part.GetRequest() != nil {
			requests++
		}
		if s := part.GetSummary(); s != nil {
			return fmt.Sprintf("%d requests, %d lost, ended by %s", s.GetRequests(), s.GetLost(), s.GetEnded())
		}
	}
}
