package embedded

import (
	"context"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/serve"
	"github.com/nereid-serving/nereid/services/gateway"
)

// Metrics configures what Prometheus scrapes. The forms in which it shows the
// times of requests are the scheduler's.
type Metrics struct {
	// Listener is where it scrapes.
	gateway.Listener
	// Host adds how busy the machine is, which is looked at each Interval.
	Host     bool
	Interval time.Duration
	// Labels are those of all series; see [obs.CheckPlace].
	Labels map[string]string
}

// Validate returns an error of the reason config_invalid that names the
// setting and what it may be.
func (m Metrics) Validate() error {
	if m.Interval <= 0 {
		return errs.New(errs.ConfigInvalid, "--metrics-interval-ms is %d: want 1 or more", m.Interval.Milliseconds())
	}
	return obs.CheckPlace(m.Labels)
}

func (s *Server) serveMetrics(ctx context.Context) error {
	c := s.config.Metrics
	if !c.Enabled {
		<-ctx.Done()
		return nil
	}
	l, err := serve.Listen(ctx, c.Endpoint("metrics", "--metrics-port"))
	if err != nil {
		return err
	}
	s.log.Info("serving metrics", zap.Stringer("address", l.Addr()))
	server := &http.Server{Handler: s.metrics.Handler(), ReadHeaderTimeout: time.Minute}
	return serve.HTTP(ctx, server, l, time.Second)
}

// watchHost shows how busy the machine is. Where that cannot be known the
// server serves all the same.
func (s *Server) watchHost(ctx context.Context) error {
	if c := s.config.Metrics; c.Enabled && c.Host {
		if err := s.showHost(ctx, c.Interval); err != nil {
			s.log.Warn("the machine's load is not among the metrics", obs.Err(err)...)
		}
	}
	<-ctx.Done()
	return nil
}

func (s *Server) showHost(ctx context.Context, interval time.Duration) error {
	host, err := obs.NewHost("/proc")
	if err != nil {
		return err
	}
	if err := s.metrics.Register(host); err != nil {
		return err
	}
	return host.Run(ctx, interval)
}
