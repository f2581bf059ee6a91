package process

import (
	"strings"
	"time"

	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/serve"
)

// AdminSettings are those of the endpoint for operators. The parser needs the
// variables metrics_port, its default, and metrics_address, the default address in
// words.
type AdminSettings struct {
	AllowMetrics   config.Switch `name:"allow-metrics" default:"true" group:"Metrics" help:"Serve /metrics."`
	MetricsAddress string        `name:"metrics-address" placeholder:"ADDRESS" group:"Metrics" help:"Address to listen on; without it ${metrics_address}."`
	MetricsPort    int           `name:"metrics-port" default:"${metrics_port}" group:"Metrics" help:"Port to listen on; 0 is any free one."`
	MetricsLabel   []string      `name:"metrics-label" sep:"none" placeholder:"NAME=VALUE" group:"Metrics" help:"Label of all metrics: cluster, node or pod; repeat the flag for several."`
}

// HostSettings are those of a process that exports the load of its machine.
type HostSettings struct {
	CPUMetrics    config.Switch `name:"allow-cpu-metrics" default:"true" group:"Metrics" help:"Show how busy the machine is: nv_cpu_*."`
	GPUMetrics    config.Switch `name:"allow-gpu-metrics" default:"true" group:"Metrics" help:"Taken for the sake of Triton's command lines: there are no metrics of GPUs yet."`
	MetricsPeriod int           `name:"metrics-interval-ms" default:"2000" group:"Metrics" help:"How often the machine is looked at, in milliseconds."`
}

// Admin returns the endpoint, which listens on address unless the settings name
// one. Errors have the reason config_invalid.
func (s *AdminSettings) Admin(address string) (Admin, error) {
	a := Admin{
		Listener: serve.Listener{Enabled: s.AllowMetrics.On, Address: address, Port: s.MetricsPort},
		Labels:   make(map[string]string, len(s.MetricsLabel)),
	}
	if s.MetricsAddress != "" {
		a.Address = s.MetricsAddress
	}
	for _, text := range s.MetricsLabel {
		name, value, ok := strings.Cut(text, "=")
		if !ok || value == "" {
			return a, errs.New(errs.ConfigInvalid, "--metrics-label=%s: want a name and a value, such as cluster=EU-1", text)
		}
		a.Labels[name] = value
	}
	return a, nil
}

// Host returns how the machine's load is measured.
func (s *HostSettings) Host() Host {
	return Host{Enabled: s.CPUMetrics.On, Interval: time.Duration(s.MetricsPeriod) * time.Millisecond}
}
