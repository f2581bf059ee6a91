package scheduler

import (
	"strconv"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Settings are a scheduler's as an operator gives them: its flags, by the
// names that they have in the environment and in files too.
type Settings struct {
	MaxQueuedRequests int      `name:"max-queued-requests" default:"262144" group:"Queues" help:"Most requests that wait, over all models; more are refused as queue_full. 0 is no bound."`
	MaxQueuedBytes    int64    `name:"max-queued-bytes" default:"4294967296" group:"Queues" help:"Most bytes of inputs that wait, over all models. 0 is no bound."`
	MetricsConfig     []string `name:"metrics-config" sep:"none" placeholder:"KEY=VALUE" group:"Metrics" help:"How the times of requests are shown: counter_latencies (true), histogram_latencies (false) and summary_latencies (false) switch forms; summary_quantiles is pairs of a quantile and its error, such as 0.5:0.05,0.99:0.001; repeat the flag for several."`
}

// Configure puts the settings into the configuration. Errors have the reason
// config_invalid.
func (s *Settings) Configure(c *Config) error {
	c.MaxQueuedRequests, c.MaxQueuedBytes = s.MaxQueuedRequests, s.MaxQueuedBytes
	for _, text := range s.MetricsConfig {
		if err := latencies(&c.Latencies, text); err != nil {
			return err
		}
	}
	return nil
}

// latencies reads one setting of --metrics-config. A later value replaces an
// earlier one.
func latencies(l *Latencies, text string) error {
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
func quantiles(l *Latencies, text, value string) error {
	l.Quantiles = nil
	for pair := range strings.SplitSeq(value, ",") {
		rank, off, _ := strings.Cut(pair, ":")
		q, err := strconv.ParseFloat(strings.TrimSpace(rank), 64)
		e, errOff := strconv.ParseFloat(strings.TrimSpace(off), 64)
		if err != nil || errOff != nil {
			return errs.New(errs.ConfigInvalid, "--metrics-config=%s: %q is no pair of a quantile and its error, such as 0.99:0.001", text, pair)
		}
		l.Quantiles = append(l.Quantiles, Quantile{Rank: q, Error: e})
	}
	if err := l.Validate(); err != nil {
		return errs.Wrap(errs.ConfigInvalid, err, "--metrics-config=%s", text)
	}
	return nil
}
