package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/scheduler/decisionlog"
)

// replaying gives a decision log to the scheduler of this release.
type replaying struct {
	Log       string `arg:"" placeholder:"LOG" help:"Decision log of a scheduler: see --decision-log."`
	Verify    bool   `name:"verify" default:"true" help:"Compare each decision with the log; always on."`
	Truncated bool   `name:"truncated" help:"Accept a log that was cut off, and use what it has."`
}

// Help shows an example.
func (replaying) Help() string {
	return `The scheduler's core gets the events of the log at their times, and has to decide the same: it does in the release that wrote the log. Another release that decides differently shows the first decision that changed, with the request, the batch and the time.

Example:

    nereid replay --verify run.log`
}

// Run verifies the log.
func (r *replaying) Run(_ context.Context, stdout io.Writer) error {
	file, err := os.Open(r.Log)
	if err != nil {
		return errs.Wrap(errs.ConfigInvalid, err, "%s: the file cannot be read", r.Log)
	}
	defer file.Close()
	log, err := decisionlog.NewReader(file)
	if err != nil {
		return err
	}
	v, err := decisionlog.Verify(log)
	cut := errors.Is(err, decisionlog.ErrTruncated)
	switch {
	case cut && !r.Truncated && v.Differs == "":
		return errs.Wrap(errs.ConfigInvalid, err, "add --truncated to verify the %d steps before", v.Steps)
	case err != nil && !cut:
		return err
	case v.Differs != "":
		return errs.New(errs.ConfigInvalid, "this release decides differently from the log of release %s: %s", log.Header.Release, v.Differs)
	}
	_, err = fmt.Fprintf(stdout, "%d steps with %d decisions are as logged by release %s\n", v.Steps, v.Decisions, log.Header.Release)
	return err
}
