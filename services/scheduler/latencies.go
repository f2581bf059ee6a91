package scheduler

import (
	"strconv"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/scheduler/internal/stats"
)

// latencies returns the forms in which metrics report the times of requests. As in Triton, quantiles that cannot be
// parsed leave the defaults in place: ignored says why. Errors have the reason config_invalid.
func (c Config) latencies() (l stats.Latencies, ignored, err error) {
	l = stats.DefaultLatencies()
	for _, text := range c.MetricsConfig {
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			return l, nil, errs.New(errs.ConfigInvalid, "--metrics-config=%s: want a setting and its value, such as summary_latencies=true", text)
		}
		switch key {
		case "counter_latencies":
			err = onOff(&l.Counters, text, value)
		case "histogram_latencies":
			err = onOff(&l.Histograms, text, value)
		case "summary_latencies":
			err = onOff(&l.Summaries, text, value)
		case "summary_quantiles": // a later value replaces an earlier one
			if ignored = quantiles(&l, text, value); ignored != nil {
				l.Quantiles = stats.DefaultLatencies().Quantiles
			}
		default:
			err = errs.New(errs.ConfigInvalid, "--metrics-config=%s: there is no setting %q: want counter_latencies, histogram_latencies, summary_latencies or summary_quantiles", text, key)
		}
		if err != nil {
			return l, nil, err
		}
	}
	return l, ignored, nil
}

func onOff(to *bool, text, value string) (err error) {
	if *to, err = strconv.ParseBool(value); err != nil {
		return errs.New(errs.ConfigInvalid, "--metrics-config=%s: want true or false, not %q", text, value)
	}
	return nil
}

// quantiles parses pairs such as 0.5:0.05,0.99:0.001.
func quantiles(l *stats.Latencies, text, value string) error {
	l.Quantiles = nil
	for pair := range strings.SplitSeq(value, ",") {
		rank, off, _ := strings.Cut(pair, ":")
		q, err := strconv.ParseFloat(strings.TrimSpace(rank), 64)
		e, errOff := strconv.ParseFloat(strings.TrimSpace(off), 64)
		if err != nil || errOff != nil {
			return errs.New(errs.ConfigInvalid, "--metrics-config=%s: %q is no pair of a quantile and its error, such as 0.99:0.001", text, pair)
		}
		l.Quantiles = append(l.Quantiles, stats.Quantile{Rank: q, Error: e})
	}
	if err := l.Validate(); err != nil {
		return errs.Wrap(errs.ConfigInvalid, err, "--metrics-config=%s", text)
	}
	return nil
}
