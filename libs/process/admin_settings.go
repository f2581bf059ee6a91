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
	TLS            AdminTLS      `embed:""`
}

// AdminTLS are the settings of TLS of the endpoint for operators.
type AdminTLS struct {
	SSL         config.Switch `name:"metrics-use-ssl" default:"false" group:"Metrics" help:"Use TLS, with --metrics-server-cert and --metrics-server-key. Changed files are reloaded."`
	Mutual      config.Switch `name:"metrics-use-ssl-mutual" default:"false" group:"Metrics" help:"Accept only TLS clients with a certificate signed by --metrics-root-cert."`
	Certificate string        `name:"metrics-server-cert" placeholder:"FILE" group:"Metrics" help:"The endpoint's certificate, in PEM."`
	Key         string        `name:"metrics-server-key" placeholder:"FILE" group:"Metrics" help:"The private key of the certificate, in PEM."`
	Roots       string        `name:"metrics-root-cert" placeholder:"FILE" group:"Metrics" help:"Certificates that sign those of clients, in PEM."`
}

// HostSettings are those of a process that exports the load of its machine.
type HostSettings struct {
	CPUMetrics    config.Switch `name:"allow-cpu-metrics" default:"true" group:"Metrics" help:"Export the machine's load: nv_cpu_*."`
	GPUMetrics    config.Switch `name:"allow-gpu-metrics" default:"true" group:"Metrics" help:"Export the GPUs' load: nv_gpu_* and nv_energy_consumption, from nereid serve and nereid node."`
	MetricsPeriod int           `name:"metrics-interval-ms" default:"2000" group:"Metrics" help:"How often machine metrics are updated, in milliseconds."`
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
	t := &s.TLS
	var err error
	a.TLS, err = serve.TLS{Certificate: t.Certificate, Key: t.Key, Roots: t.Roots, Mutual: t.Mutual.On, Protocol: "http/1.1"}.Given(t.SSL.On, "--metrics")
	return a, err
}

// Host returns how the machine's load is measured.
func (s *HostSettings) Host() Host {
	return Host{Enabled: s.CPUMetrics.On, Interval: time.Duration(s.MetricsPeriod) * time.Millisecond}
}
