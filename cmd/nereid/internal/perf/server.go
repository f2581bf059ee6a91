package perf

import (
	"context"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/scrape"
)

// metricsTimeout bounds the reading of a page of metrics.
const metricsTimeout = 5 * time.Second

// Server is what the server's own metrics say of the measured part. Times are means
// per inference, in microseconds.
type Server struct {
	Inferences float64 `json:"inferences"`
	Executions float64 `json:"executions"`
	// Batch is the mean batch size.
	Batch   float64 `json:"batch"`
	Queue   float64 `json:"queue_us"`
	Input   float64 `json:"compute_input_us"`
	Infer   float64 `json:"compute_infer_us"`
	Output  float64 `json:"compute_output_us"`
	Request float64 `json:"request_us"`
	// CPU is processor time per inference in microseconds, and Memory resident
	// bytes; both are 0 where the server does not report its process.
	CPU    float64 `json:"cpu_us,omitempty"`
	Memory float64 `json:"memory_bytes,omitempty"`
	// GPU is the mean utilization of GPUs, 0 to 1.
	GPU []float64 `json:"gpu_utilization,omitempty"`
	// Error says why the metrics could not be read.
	Error string `json:"error,omitempty"`
}

// sample is what one reading of the metrics gave.
type sample struct {
	sums   map[string]float64 // of the measured models' series
	gpu    []float64
	memory float64
}

// watch reads the server's metrics at the start of the measured part. The function
// that it returns reads them again and returns what happened in between.
func (b *Bench) watch(ctx context.Context, r *run) func() *Server {
	if b.options.Metrics == "" {
		return func() *Server { return nil }
	}
	type first struct {
		sample *sample
		err    error
	}
	before := make(chan first, 1)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Until(r.start)+r.length+r.options.Grace+metricsTimeout)
	go func() {
		start := time.NewTimer(time.Until(r.start))
		defer start.Stop()
		select {
		case <-start.C:
		case <-ctx.Done():
		}
		s, err := b.sample(ctx)
		before <- first{s, err}
	}()
	return func() *Server {
		defer cancel()
		after, err := b.sample(ctx)
		var at first
		select {
		case at = <-before:
		default: // the run ended before its measured part
			return nil
		}
		if err == nil {
			err = at.err
		}
		if err != nil {
			return &Server{Error: err.Error()}
		}
		return between(at.sample, after)
	}
}

// sample reads the metrics once.
func (b *Bench) sample(ctx context.Context) (*sample, error) {
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	families, err := scrape.Read(ctx, b.options.Metrics)
	if err != nil {
		return nil, err
	}
	measured := make(map[string]bool)
	for _, c := range b.classes {
		measured[c.Model] = true
	}
	s := &sample{sums: make(map[string]float64)}
	for name, family := range families {
		for _, m := range family.GetMetric() {
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
			switch of, ok := label(m, "model"); {
			case name == "nv_gpu_utilization":
				s.gpu = append(s.gpu, value)
			case name == "process_resident_memory_bytes":
				s.memory += value
			case !ok || measured[of]:
				s.sums[name] += value
			}
		}
	}
	return s, nil
}

func label(m *dto.Metric, name string) (string, bool) {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue(), true
		}
	}
	return "", false
}

// between is what happened from one sample to a later one.
func between(before, after *sample) *Server {
	grown := func(name string) float64 { return after.sums[name] - before.sums[name] }
	s := &Server{Inferences: grown("nv_inference_count"), Executions: grown("nv_inference_exec_count"), Memory: after.memory, GPU: after.gpu}
	if s.Executions > 0 {
		s.Batch = s.Inferences / s.Executions
	}
	if requests := grown("nv_inference_request_success"); requests > 0 {
		s.Request = grown("nv_inference_request_duration_us") / requests
		s.Queue = grown("nv_inference_queue_duration_us") / requests
		s.Input = grown("nv_inference_compute_input_duration_us") / requests
		s.Infer = grown("nv_inference_compute_infer_duration_us") / requests
		s.Output = grown("nv_inference_compute_output_duration_us") / requests
		s.CPU = grown("process_cpu_seconds_total") * 1e6 / requests
	}
	return s
}
