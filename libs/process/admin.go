package process

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/serve"
)

// Admin configures the endpoint for operators.
type Admin struct {
	serve.Listener
	// Labels are those of all series; see [obs.CheckPlace].
	Labels map[string]string
	// TLS is how the endpoint authenticates itself; nil is plain text.
	TLS *serve.TLS
}

// Validate returns an error of the reason config_invalid that names the
// setting and what it may be.
func (a Admin) Validate() error { return obs.CheckLabels(a.Labels) }

// Health reports the state of a process. Its functions are called from any
// goroutine.
type Health struct {
	// Ready returns why the process cannot serve; nil if it can.
	Ready func() error
}

// started begins the line of the log that says where metrics are. It is Triton's, since
// scripts wait for it.
const started = "Started Metrics Service at "

// Serve serves /metrics until ctx is done and, unless health is nil,
// /v2/health/live and /v2/health/ready. A process that answers at all is live.
func (a Admin) Serve(ctx context.Context, m *obs.Metrics, health *Health, log *zap.Logger) error {
	if !a.Enabled {
		<-ctx.Done()
		return nil
	}
	l, err := serve.Listen(ctx, a.Endpoint("metrics", "--metrics-port"))
	if err != nil {
		return err
	}
	log.Info(started+l.Addr().String(), zap.Stringer("address", l.Addr()))
	server := &http.Server{Handler: handler(m, health), ReadHeaderTimeout: time.Minute}
	if err := a.TLS.Secure(server, log); err != nil {
		return errors.Join(err, l.Close())
	}
	return serve.HTTP(ctx, server, l, time.Second)
}

func handler(m *obs.Metrics, health *Health) http.Handler {
	mux := http.NewServeMux()
	for pattern, serves := range endpoints(m, health) {
		mux.Handle(pattern, serves)
	}
	return mux
}

// endpoints are all that the endpoint for operators serves. Whoever reaches its port may call
// them: none changes anything.
func endpoints(m *obs.Metrics, health *Health) map[string]http.Handler {
	all := map[string]http.Handler{"GET /metrics": m.Handler()}
	if health == nil {
		return all
	}
	all["GET /v2/health/live"] = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}) // a process that answers is live
	all["GET /v2/health/ready"] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := health.Ready(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprintln(w, err) // a prober that disconnected needs no response
		}
	})
	return all
}

// Host configures whether and how often the machine's load is measured.
type Host struct {
	Enabled  bool
	Interval time.Duration
}

// Validate returns an error of the reason config_invalid that names the
// setting and what it may be.
func (h Host) Validate() error {
	if h.Interval <= 0 {
		return errs.New(errs.ConfigInvalid, "--metrics-interval-ms is %d: want 1 or more", h.Interval.Milliseconds())
	}
	return nil
}

// Watch exports the machine's load until ctx is done. If it cannot be measured, the process
// continues without.
func (h Host) Watch(ctx context.Context, m *obs.Metrics, log *zap.Logger) error {
	if h.Enabled {
		if err := h.show(ctx, m); err != nil {
			log.Warn("cannot measure the machine's load", obs.Err(err)...)
		}
	}
	<-ctx.Done()
	return nil
}

func (h Host) show(ctx context.Context, m *obs.Metrics) error {
	host, err := obs.NewHost("/proc")
	if err != nil {
		return err
	}
	if err := m.Register(host); err != nil {
		return err
	}
	return host.Run(ctx, h.Interval)
}
