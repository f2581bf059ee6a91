package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/term"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/perf"
	"github.com/nereid-serving/nereid/cmd/nereid/internal/values"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/recording"
)

// performance measures how much load a server takes.
type performance struct {
	Model   string   `arg:"" optional:"" help:"Model to send requests to."`
	Models  []string `name:"model-name" short:"m" sep:"none" placeholder:"NAME[=SHARE]" group:"Requests" help:"A model, with its weight if there are several; repeat the flag for several."`
	Version string   `name:"model-version" short:"x" placeholder:"N" group:"Requests" help:"Version of the model, instead of its default one."`
	Rows    int64    `name:"batch-size" short:"b" default:"1" group:"Requests" help:"Rows of each request, if the first dimension of an input is open."`
	Data    string   `name:"input-data" placeholder:"FILE" group:"Requests" help:"Requests to send in turn, as JSON of perf_analyzer: {\"data\": [{\"INPUT\": [1, 2]}, ...]}; an element that is a list is a sequence. Or random, or zero."`
	Inputs  []string `name:"input" sep:"none" placeholder:"NAME=VALUE" group:"Requests" help:"An input with a fixed value, as for infer; repeat the flag for several."`
	Draw    drawing  `embed:"" group:"Requests"`
	Callers []tenant `name:"tenant" sep:"none" placeholder:"'NAME[=SHARE] HEADER: VALUE'" group:"Requests" help:"A caller, its weight and the header that identifies it, such as 'gold=3 X-API-Key: KEY'. Results are reported by caller. Repeat the flag for several."`

	Concurrency string        `name:"concurrency-range" aliases:"concurrency" placeholder:"N[:N[:STEP]]" group:"Load" help:"A closed loop of this many clients, each of which waits for its response; several numbers with commas, or a range."`
	Rate        string        `name:"request-rate-range" aliases:"rate" placeholder:"N[:N[:STEP]]" group:"Load" help:"An open loop of this many requests per second, independent of earlier ones; several numbers with commas, or a range."`
	Arrivals    perf.Arrivals `name:"request-distribution" aliases:"arrivals" placeholder:"NAME" group:"Load" help:"Arrivals of an open loop: poisson (the default), constant, bursty (a fifth of the time at five times the rate) or ramp (from 0 to twice the rate)."`
	Objective   string        `name:"slo" placeholder:"p99=20ms" group:"Load" help:"Find the highest rate at which this latency quantile stays within a limit."`
	Errors      string        `name:"errors" default:"0.1%" group:"Load" help:"Share of the requests that may fail at that rate."`
	Budget      time.Duration `name:"budget" default:"50s" group:"Load" help:"The longest time to search for that rate."`
	Length      time.Duration `name:"duration" default:"10s" group:"Load" help:"How long to measure each load."`
	Warmup      time.Duration `name:"warmup" default:"1s" group:"Load" help:"How long to send requests before measuring."`
	MaxInFlight int           `name:"max-in-flight" default:"4096" group:"Load" help:"The most requests of an open loop in flight. Requests due beyond that are not sent, and reported."`

	Trace     string  `name:"trace" placeholder:"FILE" group:"Recording" help:"Replay a recording of nereid record, each request at its time. --tenant 'NAME HEADER: VALUE' sets the header of a recorded tenant."`
	Speed     float64 `name:"speed" default:"1" group:"Recording" help:"Speed of the replay relative to the recording."`
	Verify    bool    `name:"verify" group:"Recording" help:"Compare the responses with the recorded ones, and fail where they differ."`
	Tolerance float64 `name:"tolerance" default:"1e-4" group:"Recording" help:"Absolute tolerance for floating-point numbers."`
	Relative  float64 `name:"relative-tolerance" default:"1e-3" group:"Recording" help:"Additional tolerance, relative to the recorded number."`

	URL         string      `name:"url" short:"u" placeholder:"HOST:PORT" group:"Server" help:"Address of the server (localhost:8000 for HTTP, localhost:8001 for gRPC)."`
	Protocol    string      `name:"protocol" short:"i" default:"http" group:"Server" help:"Protocol: http or grpc."`
	Streaming   bool        `name:"streaming" group:"Server" help:"Use streams of gRPC, which may have several responses to a request."`
	Connections int         `name:"connections" default:"4" group:"Server" help:"Connections of gRPC."`
	Memory      string      `name:"shared-memory" default:"none" group:"Server" help:"Location of tensors: none puts them in the requests, system in shared memory, which a server on this machine must allow."`
	OutputSize  int64       `name:"output-shared-memory-size" default:"102400" group:"Server" help:"Bytes for each output in shared memory."`
	Metrics     string      `name:"metrics-url" placeholder:"URL" group:"Server" help:"URL of the server's metrics (port 8002 of the same host); none disables them."`
	Caller      caller      `embed:"" group:"Server"`
	Sequence    sequencing  `embed:"" group:"Sequences"`
	Analyzer    perfAliases `embed:""`

	JSON    string   `name:"json" placeholder:"FILE" group:"Report" help:"Write the report as JSON; - is the standard output, instead of tables."`
	CSV     string   `name:"csv" short:"f" placeholder:"FILE" group:"Report" help:"Write the columns of perf_analyzer."`
	HTML    string   `name:"html" placeholder:"FILE" group:"Report" help:"Write a page with plots, which works offline."`
	Against string   `name:"against" placeholder:"FILE" group:"Report" help:"Compare with an earlier report in JSON."`
	FailIf  []string `name:"fail-if" sep:"none" placeholder:"'p99>20ms'" group:"Report" help:"Fail if this holds for any load: mean, p50, p90, p95, p99, p99.9, rate or errors, > or <, and a limit. Repeat the flag."`
}

// sequencing says whether requests belong to sequences.
type sequencing struct {
	Length    int     `name:"sequence-length" placeholder:"N" help:"Send sequences of this many requests, for stateful models."`
	Variation float64 `name:"sequence-length-variation" default:"20" help:"By how many percent lengths vary."`
	Active    int     `name:"num-of-sequences" default:"4" help:"The number of active sequences in an open loop. A closed loop has one for each client."`
}

// perfAliases are flags of perf_analyzer that scripts give.
type perfAliases struct {
	Interval  int      `name:"measurement-interval" short:"p" hidden:"" placeholder:"MS" help:"perf_analyzer's name for --duration, in milliseconds."`
	Threshold int      `name:"latency-threshold" short:"l" hidden:"" placeholder:"MS" help:"perf_analyzer's latency threshold, in milliseconds: loads after the first that exceeds it are skipped."`
	Async     bool     `name:"async" short:"a" hidden:"" help:"Without effect."`
	Sync      bool     `name:"sync" hidden:"" help:"Without effect."`
	Verbose   bool     `name:"verbose" short:"v" hidden:"" help:"Without effect."`
	Collect   bool     `name:"collect-metrics" hidden:"" help:"Without effect: metrics are always collected."`
	CSV       bool     `name:"verbose-csv" hidden:"" help:"Without effect."`
	Threads   int      `name:"max-threads" hidden:"" help:"Without effect."`
	Stability float64  `name:"stability-percentage" short:"s" hidden:"" help:"Without effect: results carry intervals instead."`
	Trials    int      `name:"max-trials" short:"r" hidden:"" help:"Without effect: results carry intervals instead."`
	Mode      string   `name:"measurement-mode" hidden:"" help:"Without effect: windows are of time."`
	Count     int      `name:"measurement-request-count" hidden:"" help:"Without effect: windows are of time."`
	Quantile  int      `name:"percentile" hidden:"" help:"Without effect: all percentiles are reported."`
	Every     int      `name:"metrics-interval" hidden:"" help:"Without effect."`
	Binary    bool     `name:"binary-search" hidden:"" help:"Without effect: see --slo."`
	Service   string   `name:"service-kind" default:"triton" hidden:"" help:"triton."`
	Strings   []string `name:"string-data" hidden:"" help:"Without effect: see --input."`
}

// tenant is a caller with its share of the requests.
type tenant struct {
	name   string
	share  float64
	header header
}

// UnmarshalText reads NAME[=SHARE] HEADER: VALUE.
func (t *tenant) UnmarshalText(text []byte) error {
	who, rest, ok := strings.Cut(strings.TrimSpace(string(text)), " ")
	if !ok {
		return errs.New(errs.ConfigInvalid, "%q: want NAME[=SHARE] HEADER: VALUE, such as 'gold=3 X-API-Key: KEY'", who)
	}
	var err error
	if t.name, t.share, err = shared(who); err != nil {
		return err
	}
	return t.header.UnmarshalText([]byte(rest))
}

// shared reads NAME[=SHARE].
func shared(text string) (name string, share float64, err error) {
	name, weight, ok := strings.Cut(text, "=")
	share = 1
	if ok {
		share, err = strconv.ParseFloat(weight, 64)
	}
	if err != nil || name == "" || !(share > 0) || share > 1e9 {
		return "", 0, errs.New(errs.ConfigInvalid, "%q: want a name, and after = a share above 0", text)
	}
	return name, share, nil
}

// Help shows examples.
func (performance) Help() string {
	return `Latency counts from when a request was due, so that a server that stalls cannot hide what waited for it. Every figure has its 95 % confidence interval. Ctrl-C ends early and reports what was measured.

Flags of perf_analyzer are accepted under their names. Any server of the Open Inference Protocol can be measured, Triton included.

Examples:

    nereid perf digits
    nereid perf digits --concurrency 1,4,16 --html report.html
    nereid perf digits --rate 500 --arrivals bursty --timeout 100ms
    nereid perf digits --slo p99=20ms --errors 0.1%
    nereid perf -m digits=3 -m language=1 --input-data requests.json --tenant 'gold=1 X-API-Key: KEY' --tenant 'free=9 X-API-Key: KEY'
    nereid perf --trace digits.rec --speed 2 --verify
    nereid perf digits --rate 500 --json new.json --against old.json --fail-if 'p99>20ms'`
}

// Validate refuses what cannot be.
func (p *performance) Validate() error {
	if p.Model != "" {
		p.Models = append(p.Models, p.Model)
	}
	p.Protocol = strings.ToLower(p.Protocol)
	switch {
	case len(p.Models) == 0 && p.Trace == "":
		return errs.New(errs.ConfigInvalid, "name a model: nereid perf MODEL; nereid models lists those of a server")
	case p.Protocol != "http" && p.Protocol != "grpc":
		return errs.New(errs.ConfigInvalid, "--protocol=%s: want http or grpc", p.Protocol)
	case p.Streaming && p.Protocol != "grpc":
		return errs.New(errs.ConfigInvalid, "--streaming needs --protocol=grpc (-i grpc)")
	case p.Analyzer.Service != "triton":
		return errs.New(errs.Unsupported, "--service-kind=%s: only servers of the Open Inference Protocol can be measured", p.Analyzer.Service)
	case p.Objective != "" && (p.Concurrency != "" || p.Rate != ""):
		return errs.New(errs.ConfigInvalid, "--slo finds the rate: leave --concurrency and --rate out")
	case p.Length <= 0 || p.Warmup < 0 || p.Budget < 10*time.Second:
		return errs.New(errs.ConfigInvalid, "want --duration above 0, --warmup of at least 0 and --budget of at least 10s")
	case p.Rows < 1 || p.MaxInFlight < 1 || p.Connections < 1 || p.Sequence.Length < 0 || p.Sequence.Active < 1:
		return errs.New(errs.ConfigInvalid, "want at least 1 for --batch-size, --max-in-flight, --connections and --num-of-sequences")
	}
	if err := p.validateTrace(); err != nil {
		return err
	}
	if p.Analyzer.Interval > 0 {
		p.Length = time.Duration(p.Analyzer.Interval) * time.Millisecond
	}
	p.readAnalyzerShapes()
	for i := range p.Callers {
		if h := p.Callers[i].header; !httpguts.ValidHeaderFieldName(h.name) {
			return errs.New(errs.ConfigInvalid, "--tenant: %q is no header", h.name)
		}
	}
	if _, err := p.loads(); err != nil {
		return err
	}
	if _, _, err := p.objective(); err != nil {
		return err
	}
	if _, err := p.gates(); err != nil {
		return err
	}
	return p.Draw.check(p.Inputs)
}

// readAnalyzerShapes takes shapes as perf_analyzer writes them: with a colon, and without the batch
// dimension.
func (p *performance) readAnalyzerShapes() {
	for i, text := range p.Draw.Shapes {
		if name, dims, ok := strings.Cut(text, ":"); ok && !strings.Contains(name, "=") {
			p.Draw.Shapes[i] = name + "=" + strconv.FormatInt(p.Rows, 10) + "," + dims
		}
	}
}

// validateTrace refuses what does not go with a recording, or with shared memory.
func (p *performance) validateTrace() error {
	switch {
	case p.Trace != "" && (len(p.Models) > 0 || p.Concurrency != "" || p.Rate != "" || p.Objective != "" || p.Data != ""):
		return errs.New(errs.ConfigInvalid, "--trace has models, requests and times of its own: leave out the model, --input-data, --concurrency, --rate and --slo, or --trace")
	case p.Trace != "" && !(p.Speed > 0 && p.Speed <= 1e6):
		return errs.New(errs.ConfigInvalid, "--speed is %v: want more than 0", p.Speed)
	case p.Trace == "" && p.Verify:
		return errs.New(errs.ConfigInvalid, "--verify compares with a recording: give it with --trace")
	case p.Memory == "cuda":
		return errs.New(errs.Unsupported, "--shared-memory=cuda: want none or system")
	case p.Memory != "none" && p.Memory != "system":
		return errs.New(errs.ConfigInvalid, "--shared-memory=%s: want none or system", p.Memory)
	case p.Memory != "none" && p.Trace != "":
		return errs.New(errs.ConfigInvalid, "--trace sends requests as they were recorded: leave --shared-memory out")
	case p.OutputSize < 1 || p.OutputSize > 1<<40:
		return errs.New(errs.ConfigInvalid, "--output-shared-memory-size is %d: want more than 0", p.OutputSize)
	}
	return nil
}

// Run measures and reports.
func (p *performance) Run(ctx context.Context, stdout io.Writer) error {
	var before *perf.Report
	if p.Against != "" { // before anything is measured
		file, err := os.Open(p.Against)
		if err != nil {
			return errs.Wrap(errs.ConfigInvalid, err, "--against=%s: the file cannot be read", p.Against)
		}
		defer file.Close()
		if before, err = perf.ReadReport(file); err != nil {
			return err
		}
	}
	bench, report, err := p.bench(ctx)
	if err != nil {
		return withHint(err)
	}
	defer bench.Close()
	if err := p.measure(ctx, bench, report); err != nil {
		return withHint(err)
	}
	if err := p.write(stdout, report); err != nil {
		return err
	}
	if before != nil {
		fmt.Fprintln(stdout)
		if err := perf.PrintDifferences(stdout, before, report); err != nil {
			return err
		}
	}
	return p.judge(ctx, report)
}

// measure runs the loads, or looks for the highest rate.
func (p *performance) measure(ctx context.Context, bench *perf.Bench, report *perf.Report) error {
	objective, search, err := p.objective()
	if err != nil {
		return err
	}
	if search {
		report.Saturation, err = bench.FindRate(ctx, objective, cmp.Or(p.Arrivals, perf.Poisson), p.Budget)
		return err
	}
	loads, err := p.loads()
	if err != nil {
		return err
	}
	if p.Trace != "" {
		loads = []perf.Load{{Trace: filepath.Base(p.Trace), Speed: p.Speed}}
	}
	for i := 0; i < len(loads) && ctx.Err() == nil; i++ {
		m, err := bench.Run(ctx, loads[i])
		if err != nil {
			return err
		}
		report.Runs = append(report.Runs, m)
		if p.Analyzer.Threshold > 0 && m.All.Latency.Mean.Value > float64(p.Analyzer.Threshold)*1000 {
			break
		}
	}
	return nil
}

// judge fails where a gate is broken, or the command was interrupted.
func (p *performance) judge(ctx context.Context, report *perf.Report) error {
	gates, err := p.gates()
	if err != nil {
		return err
	}
	for _, m := range report.Measurements() {
		if m.Answers != nil && m.Answers.Different > 0 {
			return errs.New(errs.ConfigInvalid, "%d of %d responses differ from the recorded ones: %s", m.Answers.Different, m.Answers.Compared, m.Answers.Example)
		}
		for _, g := range gates {
			if g.Broken(m) {
				return errs.New(errs.ConfigInvalid, "%s holds at %s", g, m.Load)
			}
		}
	}
	if ctx.Err() != nil {
		return errs.New(errs.Canceled, "interrupted: the report covers what was measured until then")
	}
	return nil
}

// bench asks the server for what its models take, and prepares the requests.
func (p *performance) bench(ctx context.Context) (*perf.Bench, *perf.Report, error) {
	secured, err := p.Caller.tls()
	if err != nil {
		return nil, nil, err
	}
	address := cmp.Or(p.URL, map[string]string{"http": "localhost:8000", "grpc": "localhost:8001"}[p.Protocol])
	if _, after, ok := strings.Cut(address, "://"); ok {
		address = after
	}
	address = strings.TrimSuffix(address, "/")
	host, _, err := net.SplitHostPort(address)
	if err != nil || strings.Contains(address, "/") {
		return nil, nil, errs.New(errs.ConfigInvalid, "--url=%s: want a host and a port", p.URL)
	}
	target := perf.Target{Protocol: perf.Protocol(p.Protocol), Address: address, TLS: secured, Timeout: p.Caller.Timeout, Connections: p.Connections}
	if p.Streaming {
		target.Protocol = perf.Stream
	}
	options := perf.Options{
		Warmup: p.Warmup, Length: p.Length, Sequences: p.Sequence.Active, MaxInFlight: p.MaxInFlight, Seed: p.Draw.Seed,
		Metrics: p.metrics(host), Progress: progress(),
	}
	names := cmp.Or(p.Trace, strings.Join(p.Models, ", "))
	bench, err := p.newBench(ctx, target, options)
	if err != nil {
		return nil, nil, err
	}
	return bench, &perf.Report{Command: strings.Join(redacted(os.Args), " "), Time: time.Now(), Target: names + " at " + address + " over " + string(target.Protocol)}, nil
}

// newBench prepares the requests, or reads those of the recording.
func (p *performance) newBench(ctx context.Context, t perf.Target, o perf.Options) (*perf.Bench, error) {
	if p.Trace == "" {
		classes, err := p.classes(ctx)
		if err != nil {
			return nil, err
		}
		bench, err := perf.New(t, classes, o)
		if err != nil || p.Memory == "none" {
			return bench, err
		}
		if err := bench.Share(ctx); err != nil {
			return nil, errors.Join(err, bench.Close())
		}
		return bench, nil
	}
	file, err := openFile(ctx, "--trace", p.Trace)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	trace := &perf.Trace{Header: p.Caller.headers(), Callers: make(map[string]http.Header)}
	trace.Recording, err = recording.Read(file)
	switch {
	case errors.Is(err, recording.ErrTruncated):
		fmt.Fprintf(os.Stderr, "nereid: %s was cut off; its first %d requests are sent\n", p.Trace, len(trace.Recording.Requests))
	case err != nil:
		return nil, errs.Wrap(errs.ConfigInvalid, err, "--trace=%s", p.Trace)
	}
	if p.Verify {
		trace.Verify = &values.Tolerance{Absolute: p.Tolerance, Relative: p.Relative}
	}
	for _, t := range p.Callers {
		header := p.Caller.headers()
		header.Set(t.header.name, t.header.value)
		trace.Callers[t.name] = header
	}
	return perf.NewReplay(t, trace, o)
}

// redacted hides the values of headers: they may be keys.
func redacted(args []string) []string {
	list := append([]string{"nereid"}, args[min(1, len(args)):]...)
	for i, arg := range list {
		if name, _, ok := strings.Cut(arg, ": "); ok {
			list[i] = "'" + name + ": …'"
		}
	}
	return list
}

// metrics is the URL of the server's metrics.
func (p *performance) metrics(host string) string {
	switch {
	case p.Metrics == "none":
		return ""
	case p.Metrics == "":
		return "http://" + net.JoinHostPort(host, "8002") + "/metrics"
	case !strings.Contains(p.Metrics, "://"):
		return "http://" + p.Metrics
	}
	return p.Metrics
}

// progress shows where a run is, on a terminal.
func progress() func(perf.Progress) {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		return nil
	}
	return func(p perf.Progress) {
		where := "warming up"
		if p.Elapsed >= 0 {
			where = fmt.Sprintf("%.0f of %.0f s", min(p.Elapsed, p.Length).Seconds(), p.Length.Seconds())
		}
		fmt.Fprintf(os.Stderr, "\r\033[K%s: %s, %d answered, %d failed, p99 %v", p.Load, where, p.Answered, p.Failed, p.P99)
		if p.Elapsed >= p.Length {
			fmt.Fprint(os.Stderr, "\r\033[K")
		}
	}
}

// write writes the report in every form that was asked for.
func (p *performance) write(stdout io.Writer, report *perf.Report) error {
	for _, form := range []struct {
		path  string
		write func(io.Writer) error
	}{{p.JSON, report.WriteJSON}, {p.CSV, report.WriteCSV}, {p.HTML, report.WriteHTML}} {
		switch form.path {
		case "":
			continue
		case "-":
			if err := form.write(stdout); err != nil {
				return err
			}
			continue
		}
		file, err := os.Create(form.path)
		if err == nil {
			err = form.write(file)
			if closed := file.Close(); err == nil {
				err = closed
			}
		}
		if err != nil {
			return errs.Wrap(errs.ConfigInvalid, err, "the report cannot be written to %s: %v", form.path, err)
		}
	}
	if p.JSON == "-" || p.CSV == "-" || p.HTML == "-" {
		return nil
	}
	return report.Print(stdout)
}
