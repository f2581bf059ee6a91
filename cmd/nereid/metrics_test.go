package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/embedded"
	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/gateway"
	"github.com/nereid-serving/nereid/services/scheduler"
)

func TestMetricsAreAskedFor(t *testing.T) {
	on := config.Switch{On: true}
	c := embedded.Default()
	s := &serve{
		AllowMetrics: on, CPUMetrics: on, MetricsPort: 9, MetricsAddress: "127.0.0.1", MetricsPeriod: 500,
		MetricsConfig: []string{
			"counter_latencies=false", "histogram_latencies=true", "summary_latencies=true", "summary_quantiles=0.1:0.2",
			"summary_quantiles=0.5:0.05, 0.99:0.001",
		},
		MetricsLabel: []string{"cluster=eu", "pod=a=b"},
	}
	if err := s.metrics(&c); err != nil {
		t.Fatal(err)
	}
	want := embedded.Metrics{
		Listener: gateway.Listener{Enabled: true, Address: "127.0.0.1", Port: 9},
		Host:     true, Interval: 500 * time.Millisecond, Labels: map[string]string{"cluster": "eu", "pod": "a=b"},
	}
	if diff := cmp.Diff(want, c.Metrics); diff != "" {
		t.Error(diff)
	}
	latencies := scheduler.Latencies{
		Histograms: true, Summaries: true,
		Quantiles: []scheduler.Quantile{{Rank: 0.5, Error: 0.05}, {Rank: 0.99, Error: 0.001}},
	}
	if diff := cmp.Diff(latencies, c.Scheduler.Latencies); diff != "" {
		t.Error(diff)
	}
}

func TestMetricsListenWhereHTTPDoes(t *testing.T) {
	tests := map[string]struct {
		serve serve
		want  string
	}{
		"HTTP's address":     {serve{AllowHTTP: config.Switch{On: true}, HTTPAddress: "10.0.0.1"}, "10.0.0.1"},
		"HTTP on a socket":   {serve{AllowHTTP: config.Switch{On: true}, HTTPAddress: "unix:/run/http"}, "127.0.0.1"},
		"everywhere without": {serve{HTTPAddress: "10.0.0.1"}, "0.0.0.0"},
		"its own":            {serve{AllowHTTP: config.Switch{On: true}, HTTPAddress: "10.0.0.1", MetricsAddress: "10.0.0.2"}, "10.0.0.2"},
	}
	for name, tt := range tests {
		c := embedded.Default()
		if err := tt.serve.metrics(&c); err != nil || c.Metrics.Address != tt.want {
			t.Errorf("%s: %q, want %q; %v", name, c.Metrics.Address, tt.want, err)
		}
	}
}

func TestMistakesInMetricsNameWhatIsAllowed(t *testing.T) {
	const keys = "counter_latencies, histogram_latencies, summary_latencies or summary_quantiles"
	tests := map[string]struct{ config, label, want string }{
		"an unknown key":          {config: "summaries=true", want: keys},
		"no value":                {config: "counter_latencies", want: "summary_latencies=true"},
		"no truth":                {config: "counter_latencies=perhaps", want: "true or false"},
		"no quantiles":            {config: "summary_quantiles=", want: "0.99:0.001"},
		"no error":                {config: "summary_quantiles=0.5:0.05,0.9", want: `"0.9" is no pair`},
		"a word":                  {config: "summary_quantiles=half:0.05", want: `"half:0.05" is no pair`},
		"a quantile above 1":      {config: "summary_quantiles=99:0.05", want: "0 to 1"},
		"a quantile of no number": {config: "summary_quantiles=NaN:0.05", want: "0 to 1"},
		"an error of 0":           {config: "summary_quantiles=0.5:0", want: "more than 0"},
		"an error above 1":        {config: "summary_quantiles=0.5:2", want: "at most 1"},
		"a quantile twice":        {config: "summary_quantiles=0.5:0.1,0.50:0.2", want: "twice"},
		"a label without value":   {label: "cluster", want: "--metrics-label=cluster"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := embedded.Default()
			s := new(serve)
			if tt.config != "" {
				s.MetricsConfig = []string{tt.config}
			}
			if tt.label != "" {
				s.MetricsLabel = []string{tt.label}
			}
			if err := s.metrics(&c); errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}
