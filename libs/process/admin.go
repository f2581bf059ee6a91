package process

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/serve"
)

// Admin configures the endpoint for those who run the process.
type Admin struct {
	serve.Listener
	// Labels are those of all series; see [obs.CheckPlace].
	Labels map[string]string
}

// Validate returns an error of the reason config_invalid that names the
// setting and what it may be.
func (a Admin) Validate() error { return obs.CheckPlace(a.Labels) }

// Health is what a process says of itself. Its functions are called from any
// goroutine.
type Health struct {
	// Ready says what the process lacks to do what it is there for; nil is
	// nothing.
	Ready func() error
}

// Serve serves /metrics until ctx is done and, unless health is nil,
// /v2/health/live and /v2/health/ready. A process that answers at all lives.
func (a Admin) Serve(ctx context.Context, m *obs.Metrics, health *Health, log *zap.Logger) error {
	if !a.Enabled {
		<-ctx.Done()
		return nil
	}
	l, err := serve.Listen(ctx, a.Endpoint("metrics", "--metrics-port"))
	if err != nil {
		return err
	}
	log.Info("serving metrics", zap.Stringer("address", l.Addr()))
	server := &http.Server{Handler: handler(m, health), ReadHeaderTimeout: time.Minute}
	return serve.HTTP(ctx, server, l, time.Second)
}

func handler(m *obs.Metrics, health *Health) http.Handler {
	if health == nil {
		return m.Handler()
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", m.Handler())
	mux.HandleFunc("GET /v2/health/live", func(http.ResponseWriter, *http.Request) {}) // whoever answers lives
	mux.HandleFunc("GET /v2/health/ready", func(w http.ResponseWriter, _ *http.Request) {
		if err := health.Ready(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprintln(w, err) // a prober that has gone needs no answer
		}
	})
	return mux
}

// Host configures whether and how often the machine is looked at.
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

// Watch shows how busy the machine is until ctx is done. Where that cannot be
// known the process goes on all the same.
func (h Host) Watch(ctx context.Context, m *obs.Metrics, log *zap.Logger) error {
	if h.Enabled {
		if err := h.show(ctx, m); err != nil {
			log.Warn("the machine's load is not among the metrics", obs.Err(err)...)
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
