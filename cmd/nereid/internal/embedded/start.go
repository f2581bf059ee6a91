package embedded

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/gateway"
)

// start follows the start of the server and shows the operator what came of
// it.
type start struct {
	server  *Server
	gateway *gateway.Gateway
}

// Run shows the models when all of them are ready or have failed. With
// ExitOnError a failed one ends the process.
func (s *start) Run(ctx context.Context) error {
	begun := time.Now()
	if !s.bound(ctx) || !s.settled(ctx, begun) {
		s.logDrain()
		return nil
	}
	index := s.gateway.Index()
	if err := table(s.server.stdout, index); err != nil {
		return fmt.Errorf("show the models: %w", err)
	}
	if err := failures(index); err != nil && s.server.config.ExitOnError.On {
		return err
	}
	s.gateway.Announce()
	s.server.log.Info("started", zap.Bool("ready", s.gateway.Ready()), zap.Duration("took", time.Since(begun)))
	<-ctx.Done()
	s.logDrain()
	return nil
}

// logDrain logs what the end waits for. This part stops first.
func (s *start) logDrain() {
	s.server.log.Info("draining: press Ctrl-C again to stop at once", zap.Int64("in_flight", s.gateway.InFlight()))
}

func (s *start) bound(ctx context.Context) bool {
	select {
	case <-s.gateway.Bound():
	case <-ctx.Done():
		return false
	}
	http, grpc := s.gateway.Addresses()
	s.server.log.Info("listening", zap.String("http", http), zap.String("grpc", grpc))
	return true
}

// progress is how often the models that are still loading are named.
const progress = 5 * time.Second

func (s *start) settled(ctx context.Context, begun time.Time) bool {
	tick := time.NewTicker(progress)
	defer tick.Stop()
	for {
		select {
		case <-s.gateway.Started():
			return true
		case <-ctx.Done():
			return false
		case <-tick.C:
			if names := unsettled(s.gateway.Index()); len(names) > 0 {
				s.server.log.Info("still loading", zap.Strings("models", names), zap.Duration("elapsed", time.Since(begun)))
			}
		}
	}
}

// unsettled names the models that are neither ready nor failed.
func unsettled(index []gateway.IndexEntry) []string {
	names := []string{}
	for _, e := range index {
		if e.State != infer.Ready.String() && e.State != infer.Unavailable.String() {
			names = append(names, e.ID().String())
		}
	}
	return names
}

// table writes the models, their versions and states.
func table(out io.Writer, index []gateway.IndexEntry) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "MODEL\tVERSION\tSTATE\tCAUSE")
	for _, e := range index {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", e.ID(), e.Version, e.State, e.Reason)
	}
	return w.Flush()
}

// failures returns which models are not ready.
func failures(index []gateway.IndexEntry) error {
	var failed []string
	for _, e := range index {
		if e.State != "" && e.State != infer.Ready.String() && e.Reason != gateway.Unloaded {
			failed = append(failed, e.ID().String())
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return errs.New(errs.LoadFailed, "failed to load all models: not %q: see the causes above, or start with --exit-on-error=false to serve the others", failed)
}
