package scheduler

import (
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/resources"
	"github.com/nereid-serving/nereid/services/scheduler/core"
	"github.com/nereid-serving/nereid/services/scheduler/internal/stats"
)

// A parser leaves alone what is no flag.
func TestDefaultIsThatOfTheFlags(t *testing.T) {
	c, want := Config{ID: "s1", Pool: "large", TakeoverWait: 1}, Default()
	want.ID, want.Pool, want.TakeoverWait = "s1", "large", 1
	parser, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	_, err = parser.Parse(nil)
	if diff := cmp.Diff(c, want); diff != "" || err != nil {
		t.Errorf("%v (-flags +Default):\n%s", err, diff)
	}
}

func TestARateLimiterIsAskedFor(t *testing.T) {
	counts := resources.Counts{{Name: "r1", Device: resources.EachDevice, Count: 4}, {Name: "r2", Device: 1, Count: 2}}
	for name, tt := range map[string]struct {
		rateLimit string
		given     []string
		want      *core.RateLimit
	}{
		"by default":             {rateLimitOff, nil, nil},
		"resources alone":        {"off", []string{"R1:4"}, nil},
		"with default resources": {"execution_count", nil, &core.RateLimit{}},
		"as Triton takes it":     {"Execution_Count", []string{"R1:4", "r2:2:1"}, &core.RateLimit{Counts: counts}},
	} {
		c := Default()
		c.RateLimit, c.RateLimitResources = tt.rateLimit, tt.given
		limits, err := c.limits()
		want := core.Config{MaxRequests: c.MaxQueuedRequests, MaxBytes: c.MaxQueuedBytes, RateLimit: tt.want}
		if diff := cmp.Diff(want, limits); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestLatenciesAreAskedFor(t *testing.T) {
	c := Config{MetricsConfig: []string{
		"counter_latencies=false", "histogram_latencies=true", "summary_latencies=true", "summary_quantiles=0.1:0.2",
		"summary_quantiles=0.5:0.05, 0.99:0.001",
	}}
	got, ignored, err := c.latencies()
	want := stats.Latencies{
		Histograms: true, Summaries: true,
		Quantiles: []stats.Quantile{{Rank: 0.5, Error: 0.05}, {Rank: 0.99, Error: 0.001}},
	}
	if diff := cmp.Diff(want, got); diff != "" || ignored != nil || err != nil {
		t.Errorf("%v, %v: %s", ignored, err, diff)
	}
}

func TestQuantilesThatCannotBeReadLeaveTheDefaults(t *testing.T) {
	for name, tt := range map[string]struct{ config, want string }{
		"no quantiles":            {"summary_quantiles=", "0.99:0.001"},
		"no error":                {"summary_quantiles=0.5:0.05,0.9", `"0.9" is no pair`},
		"a word":                  {"summary_quantiles=half:0.05", `"half:0.05" is no pair`},
		"a quantile above 1":      {"summary_quantiles=99:0.05", "0 to 1"},
		"a quantile of no number": {"summary_quantiles=NaN:0.05", "0 to 1"},
		"an error of 0":           {"summary_quantiles=0.5:0", "more than 0"},
		"an error above 1":        {"summary_quantiles=0.5:2", "at most 1"},
		"a quantile twice":        {"summary_quantiles=0.5:0.1,0.50:0.2", "twice"},
	} {
		t.Run(name, func(t *testing.T) {
			c := Default()
			c.MetricsConfig = []string{tt.config}
			got, ignored, err := c.latencies()
			if diff := cmp.Diff(stats.DefaultLatencies(), got); diff != "" || err != nil {
				t.Errorf("%v: %s", err, diff)
			}
			if errs.Of(ignored) != errs.ConfigInvalid || !strings.Contains(ignored.Error(), tt.want) {
				t.Errorf("ignored for %v, want %q", ignored, tt.want)
			}
		})
	}
}

func TestMistakesInMetricsNameWhatIsAllowed(t *testing.T) {
	const keys = "counter_latencies, histogram_latencies, summary_latencies or summary_quantiles"
	tests := map[string]struct{ config, want string }{
		"an unknown key": {"summaries=true", keys},
		"no value":       {"counter_latencies", "summary_latencies=true"},
		"no truth":       {"counter_latencies=perhaps", "true or false"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := Default()
			c.MetricsConfig = []string{tt.config}
			if err := c.Validate(); errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}
