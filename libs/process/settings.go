package process

import (
	"context"
	"crypto/tls"
	"errors"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/obs"
)

// Settings are those of the programs of all services.
type Settings struct {
	Cluster ClusterSettings `embed:""`
	Admin   AdminSettings   `embed:""`
	Log     LogSettings     `embed:""`
}

// Validate refuses values out of range, with the reason config_invalid.
func (s *Settings) Validate() error {
	admin, err := s.Admin.Admin("")
	return errors.Join(s.Cluster.Validate(), err, admin.Validate())
}

// Process has the dependencies of a service.
type Process struct {
	// ID names the process among those of its service.
	ID      string
	Bus     *bus.Bus
	Metrics *obs.Metrics
	Log     *zap.Logger
	// Logs is the log behind Log, whose settings can be changed.
	Logs *obs.Log
	// Listening and Dialing are TLS among the services, on either end; nil is
	// plain text.
	Listening, Dialing *tls.Config
}

// Service is a service within its process.
type Service struct {
	// Parts are started in order and stopped in reverse.
	Parts []lifecycle.Part
	// Ready returns why the service cannot serve; nil if it can.
	Ready func() error
}

// Until returns a part of a process that only calls f when it stops.
func Until(f func() error) func(context.Context) error {
	return func(ctx context.Context) error {
		<-ctx.Done()
		return f()
	}
}

// NotReady returns an error with the missing condition, or nil if ready.
func NotReady(ready bool, missing string) error {
	if ready {
		return nil
	}
	return errors.New(missing)
}

// Serve runs a service until ctx is done and its parts have stopped: first the
// endpoint for operators, then the connection to NATS, then what build makes.
// The endpoint listens on address unless the settings name one.
func (s *Settings) Serve(ctx context.Context, address string, build func(context.Context, *Process) (Service, error)) error {
	logs, err := s.Log.Open()
	if err != nil {
		return err
	}
	defer logs.Close()
	log := logs.Logger
	CollectLate()
	id, err := s.Cluster.Name()
	if err != nil {
		return err
	}
	admin, err := s.Admin.Admin(address)
	if err != nil {
		return err
	}
	r := &runner{settings: s, build: build, process: Process{ID: id, Metrics: obs.NewMetrics(Release, admin.Labels), Log: log, Logs: logs}}
	r.setNotReady(errors.New("starting"))
	if err := s.Cluster.secure(&r.process); err != nil {
		return err
	}
	return lifecycle.Run(ctx,
		lifecycle.Part{Name: "metrics", Run: func(ctx context.Context) error {
			return admin.Serve(ctx, r.process.Metrics, &Health{Ready: r.ready}, log)
		}},
		lifecycle.Part{Run: r.run})
}

// runner is a service from its start to its end.
type runner struct {
	settings *Settings
	build    func(context.Context, *Process) (Service, error)
	process  Process
	health   atomic.Pointer[func() error]
}

func (r *runner) ready() error { return (*r.health.Load())() }

func (r *runner) setNotReady(err error) {
	f := func() error { return err }
	r.health.Store(&f)
}

// run connects, makes the service and runs it.
func (r *runner) run(ctx context.Context) (err error) {
	log := r.process.Log
	r.process.Bus, err = r.settings.Cluster.Connect(ctx, &r.process)
	if err != nil {
		return ended(ctx, err)
	}
	service, err := r.build(ctx, &r.process)
	if err == nil {
		log.Info("running", zap.String("id", r.process.ID), zap.String("version", Release))
		r.health.Store(&service.Ready)
		unhook := context.AfterFunc(ctx, func() {
			r.setNotReady(errs.New(errs.Draining, "the process drains"))
			log.Info("draining: press Ctrl-C again to stop at once")
		})
		follow := lifecycle.Part{Name: "log settings", Run: func(ctx context.Context) error { return control.FollowLog(ctx, r.process.Bus, r.process.Logs) }}
		err = lifecycle.Run(ctx, append([]lifecycle.Part{follow}, service.Parts...)...)
		unhook() // a service that ended by itself does not drain
	}
	return ended(ctx, errors.Join(err, r.process.Bus.Close()))
}

// ended returns nil if ctx ended the run.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
