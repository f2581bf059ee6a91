package main

import (
	"strconv"
	"strings"
	"time"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/embedded"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/scheduler"
)

// metrics reads where metrics are served, and which.
func (s *serve) metrics(c *embedded.Config) error {
	m := &c.Metrics
	m.Enabled, m.Port, m.Host = s.AllowMetrics.On, s.MetricsPort, s.CPUMetrics.On
	m.Interval = time.Duration(s.MetricsPeriod) * time.Millisecond
	switch {
	case s.MetricsAddress != "":
		m.Address = s.MetricsAddress
	case s.AllowHTTP.On && strings.HasPrefix(s.HTTPAddress, "unix:"):
		m.Address = "127.0.0.1" // of this machine alone, as the socket
	case s.AllowHTTP.On:
		m.Address = s.HTTPAddress
	}
	m.Labels = make(map[string]string, len(s.MetricsLabel))
	for _, text := range s.MetricsLabel {
		name, value, ok := strings.Cut(text, "=")
		if !ok || value == "" {
			return errs.New(errs.ConfigInvalid, "--metrics-label=%s: want a name and a value, such as cluster=EU-1", text)
		}
		m.Labels[name] = value
	}
	for _, text := range s.MetricsConfig {
		if err := latencies(&c.Scheduler.Latencies, text); err != nil {
			return err
		}
	}
	return nil
}

// latencies reads one setting of --metrics-config. A later value replaces an
// earlier one.
func latencies(l *scheduler.Latencies, text string) error {
	key, value, ok := strings.Cut(text, "=")
	if !ok {
		return errs.New(errs.ConfigInvalid, "--metrics-config=%s: want a setting and its value, such as summary_latencies=true", text)
	}
	switch key {
	case "counter_latencies":
		return onOff(&l.Counters, text, value)
	case "histogram_latencies":
		return onOff(&l.Histograms, text, value)
	case "summary_latencies":
		return onOff(&l.Summaries, text, value)
	case "summary_quantiles":
		return quantiles(l, text, value)
	}
	return errs.New(errs.ConfigInvalid, "--metrics-config=%s: there is no setting %q: want counter_latencies, histogram_latencies, summary_latencies or summary_quantiles", text, key)
}

func onOff(to *bool, text, value string) (err error) {
	if *to, err = strconv.ParseBool(value); err != nil {
		return errs.New(errs.ConfigInvalid, "--metrics-config=%s: want true or false, not %q", text, value)
	}
	return nil
}

// quantiles reads pairs such as 0.5:0.05,0.99:0.001.
func quantiles(l *scheduler.Latencies, text, value string) error {
	l.Quantiles = nil
	for pair := range strings.SplitSeq(value, ",") {
		rank, off, _ := strings.Cut(pair, ":")
		q, err := strconv.ParseFloat(strings.TrimSpace(rank), 64)
		e, errOff := strconv.ParseFloat(strings.TrimSpace(off), 64)
		if err != nil || errOff != nil {
			return errs.New(errs.ConfigInvalid, "--metrics-config=%s: %q is no pair of a quantile and its error, such as 0.99:0.001", text, pair)
		}
		l.Quantiles = append(l.Quantiles, scheduler.Quantile{Rank: q, Error: e})
	}
	if err := l.Validate(); err != nil {
		return errs.Wrap(errs.ConfigInvalid, err, "--metrics-config=%s", text)
	}
	return nil
}
