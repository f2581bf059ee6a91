package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/registry"
	"github.com/nereid-serving/nereid/services/scheduler"
	"github.com/nereid-serving/nereid/services/scheduler/core"
	"github.com/nereid-serving/nereid/services/scheduler/decisionlog"
	"github.com/nereid-serving/nereid/services/scheduler/simulate"
)

// simulation runs the scheduler's core in virtual time.
type simulation struct {
	Trace     string `name:"trace" placeholder:"FILE" group:"Requests of a log" help:"Decision log, or recording of nereid record, to simulate. A recording needs --model-repository and --costs."`
	Truncated bool   `name:"truncated" group:"Requests of a log" help:"Accept a log that was cut off, and use what it has."`

	Repositories []string         `name:"model-repository" sep:"none" placeholder:"DIR" group:"Drawn requests" help:"Model repository with the configurations of the models, for generated requests and those of a recording."`
	Model        string           `name:"model" placeholder:"NAME" group:"Drawn requests" help:"Model of the request."`
	Rate         float64          `name:"rate" placeholder:"N" group:"Drawn requests" help:"Requests per second."`
	Arrivals     simulate.Pattern `name:"arrivals" default:"poisson" enum:"poisson,bursty,constant" group:"Drawn requests" help:"Arrivals: poisson, bursty (a fifth of the time at five times the rate) or constant."`
	Requests     int              `name:"requests" default:"100000" group:"Drawn requests" help:"The number of requests."`
	Deadline     time.Duration    `name:"deadline" placeholder:"50ms" group:"Drawn requests" help:"How long each client waits. Without it they wait forever."`
	BatchSizes   string           `name:"batch-sizes" default:"1" placeholder:"N" group:"Drawn requests" help:"Batch size of a request, or several sizes with weights, such as 1:0.9,8:0.1."`
	Elements     string           `name:"elements" default:"1" placeholder:"N" group:"Drawn requests" help:"Size of variable dimensions, or several sizes with weights."`

	Costs        string         `name:"costs" placeholder:"FILE" group:"Instances" help:"Execution times: a table with lines of model, kind of device, batch size, elements of a row or -, and time, such as digits cpu 8 - 1.3ms; or a decision log. The default with --trace is the trace."`
	Devices      int            `name:"devices" placeholder:"N" group:"Instances" help:"The number of devices: 1, or those of the trace."`
	Instances    int            `name:"instances" placeholder:"N" group:"Instances" help:"The number of instances of a model on each device: as its configuration says, or those of the trace."`
	DispatchCost *time.Duration `name:"dispatch-cost" placeholder:"50us" group:"Instances" help:"Time between the dispatch of a batch and its start: 50us, or as measured in the log."`

	Policy  simulate.Policy `name:"policy" default:"nereid" enum:"nereid,fifo" help:"The scheduling policy: nereid, or fifo for first in, first out, which ignores deadlines."`
	Compare bool            `name:"compare" help:"Simulate fifo too, and count refusals of requests that it would have answered in time. Always on with --trace."`
	Seed    uint64          `name:"seed" default:"1" help:"Random seed: equal seeds give equal reports."`
	JSON    bool            `name:"json" help:"Print JSON."`
}

// Help shows examples.
func (simulation) Help() string {
	return `The scheduler decides in virtual time, so that a million requests take seconds. docs/guides/simulate.md leads through it.

Examples:

    nereid serve --model-repository models/ --decision-log run.log
    nereid simulate --trace run.log
    nereid simulate --trace run.log --devices 2
    nereid simulate --model-repository models/ --model digits --rate 5000 --deadline 50ms --costs run.log --compare`
}

// Validate refuses what does not go together, with the reason config_invalid.
func (s *simulation) Validate() error {
	switch {
	case s.Trace == "" && s.Model == "":
		return errs.New(errs.ConfigInvalid, "there are no requests: give those of a log with --trace, or have some drawn with --model-repository, --model, --rate and --costs")
	case s.Trace != "" && (s.Model != "" || s.Rate != 0 || s.Deadline != 0):
		return errs.New(errs.ConfigInvalid, "--trace has requests and models of its own: leave out --model, --rate and --deadline, or --trace")
	case s.Trace == "" && len(s.Repositories) == 0:
		return errs.New(errs.ConfigInvalid, "the configuration of model '%s' is not known: give its --model-repository", s.Model)
	case s.Trace == "" && !(s.Rate > 0 && s.Rate <= 1e9):
		return errs.New(errs.ConfigInvalid, "--rate is %v: want how many requests come in a second, more than 0", s.Rate)
	case s.Trace == "" && s.Costs == "":
		return errs.New(errs.ConfigInvalid, "what executions take is not known: give a table or a decision log with --costs")
	case s.Requests < 1 || s.Requests > 100_000_000:
		return errs.New(errs.ConfigInvalid, "--requests is %d: want 1 to 100000000", s.Requests)
	case s.Deadline < 0:
		return errs.New(errs.ConfigInvalid, "--deadline is %v: want 0 (none) or more", s.Deadline)
	case s.Devices < 0 || s.Instances < 0 || s.Devices > 10_000 || s.Instances > 10_000:
		return errs.New(errs.ConfigInvalid, "--devices is %d and --instances %d: want 0 (as it is) to 10000", s.Devices, s.Instances)
	case s.DispatchCost != nil && *s.DispatchCost < 0:
		return errs.New(errs.ConfigInvalid, "--dispatch-cost is %v: want 0 or more", *s.DispatchCost)
	}
	_, err := simulate.ParseDistribution(s.BatchSizes)
	if err != nil {
		return errs.Wrap(errs.ConfigInvalid, err, "--batch-sizes=%s", s.BatchSizes)
	}
	if _, err = simulate.ParseDistribution(s.Elements); err != nil {
		return errs.Wrap(errs.ConfigInvalid, err, "--elements=%s", s.Elements)
	}
	return nil
}

// Run prints what became of the requests.
func (s *simulation) Run(ctx context.Context, stdout io.Writer) error {
	w, config, reports, err := s.load(ctx)
	if err != nil {
		return err
	}
	r, err := simulate.Run(w, config)
	if err != nil {
		return err
	}
	reports = append(reports, r)
	if config.Policy != simulate.FIFO && (s.Compare || s.Trace != "") {
		config.Policy = simulate.FIFO
		if r, err = simulate.Run(w, config); err != nil {
			return err
		}
		reports = append(reports, r)
	}
	if r.Name == string(simulate.FIFO) {
		for _, other := range reports[:len(reports)-1] {
			other.Compare(w, r)
		}
	}
	if s.JSON {
		out := json.NewEncoder(stdout)
		out.SetIndent("", "  ")
		return out.Encode(struct {
			Seed uint64             `json:"seed"`
			Runs []*simulate.Report `json:"runs"`
		}{s.Seed, reports})
	}
	return printReports(stdout, reports)
}

// load reads what is simulated, and what was recorded of it.
func (s *simulation) load(ctx context.Context) (*simulate.Workload, simulate.Config, []*simulate.Report, error) {
	c := simulate.Config{Policy: s.Policy, Seed: s.Seed, Clock: mono.New(), Way: simulate.Way{Before: 50 * time.Microsecond}}
	var trace *simulate.Trace
	if s.Trace != "" {
		w, err := s.readRecording(ctx, &c)
		if w != nil || err != nil {
			return w, c, nil, err
		}
		if len(s.Repositories) > 0 {
			return nil, c, nil, errs.New(errs.ConfigInvalid, "the decision log %s has the configurations of its models: leave out --model-repository", s.Trace)
		}
		if trace, err = s.readTrace(ctx, "--trace", s.Trace); err != nil {
			return nil, c, nil, err
		}
		c.Costs, c.Way, c.SameTime = trace.Costs, trace.Way, true
	}
	if err := s.readCosts(ctx, &c); err != nil {
		return nil, c, nil, err
	}
	if s.DispatchCost != nil {
		c.Way = simulate.Way{Before: *s.DispatchCost}
	}
	if trace == nil {
		w, err := s.draw(ctx, c.Costs)
		return w, c, nil, err
	}
	if s.Devices > 0 || s.Instances > 0 {
		trace.Workload.Pool(max(s.Devices, 1), max(s.Instances, 1), c.Costs)
	}
	return trace.Workload, c, []*simulate.Report{trace.Recorded}, nil
}

// readTrace reads a decision log.
func (s *simulation) readTrace(ctx context.Context, flag, path string) (*simulate.Trace, error) {
	file, err := openFile(ctx, flag, path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	trace, err := simulate.ReadTrace(file)
	switch {
	case errors.Is(err, decisionlog.ErrTruncated) && trace != nil && s.Truncated:
		return trace, nil
	case errors.Is(err, decisionlog.ErrTruncated) && trace != nil:
		return nil, errs.Wrap(errs.ConfigInvalid, err, "%s=%s: add --truncated to take the %d requests before", flag, path, trace.Recorded.Arrivals)
	case err != nil:
		return nil, errs.Wrap(errs.ConfigInvalid, err, "%s=%s", flag, path)
	}
	return trace, nil
}

// readCosts reads the table or the log that --costs names.
func (s *simulation) readCosts(ctx context.Context, c *simulate.Config) error {
	if s.Costs == "" {
		return nil
	}
	c.SameTime = false
	file, err := openFile(ctx, "--costs", s.Costs)
	if err != nil {
		return err
	}
	defer file.Close()
	in := bufio.NewReader(file)
	if decisionlog.Is(in) {
		trace, err := s.readTrace(ctx, "--costs", s.Costs)
		if err == nil {
			c.Costs, c.Way = trace.Costs, trace.Way
		}
		return err
	}
	if c.Costs, err = simulate.ReadCosts(in); err != nil {
		return errs.Wrap(errs.ConfigInvalid, err, "--costs=%s", s.Costs)
	}
	return nil
}

// draw draws the requests to the model.
func (s *simulation) draw(ctx context.Context, costs *simulate.Costs) (*simulate.Workload, error) {
	models, err := s.models(ctx)
	if err != nil {
		return nil, err
	}
	config, err := s.configuration(models, s.Model)
	if err != nil {
		return nil, err
	}
	d := simulate.Synthetic{
		Limits: queueLimits(),
		Model:  s.Model, Config: config,
		Rate: s.Rate, Pattern: s.Arrivals, Requests: s.Requests, Deadline: s.Deadline, Seed: s.Seed,
		Devices: max(s.Devices, 1), Instances: cmp.Or(s.Instances, simulate.InstancesOf(config)), Kind: cmp.Or(kindOf(config, costs), "cpu"),
	}
	d.BatchSizes, _ = simulate.ParseDistribution(s.BatchSizes) // Validate has read both
	d.Elements, _ = simulate.ParseDistribution(s.Elements)
	if largest := d.BatchSizes.Max(); largest > max(config.MaxBatchSize, 1) {
		return nil, errs.New(errs.ConfigInvalid, "--batch-sizes has %d, model '%s' takes %d at most", largest, s.Model, max(config.MaxBatchSize, 1))
	}
	return d.Workload(), nil
}

// queueLimits are those of a scheduler without settings.
func queueLimits() core.Config {
	limits := scheduler.Default()
	return core.Config{MaxRequests: limits.MaxQueuedRequests, MaxBytes: limits.MaxQueuedBytes}
}

// kindOf is the kind of device on which a model runs, of those on which costs are known; empty for
// none.
func kindOf(c *modelconfig.Config, costs *simulate.Costs) string {
	kinds := costs.Kinds(c.Name)
	onGPU := slices.ContainsFunc(c.Groups, func(g modelconfig.InstanceGroup) bool { return g.Kind == modelconfig.KindGPU })
	switch {
	case len(kinds) == 0:
		return ""
	case onGPU && slices.Contains(kinds, "gpu"):
		return "gpu"
	}
	return kinds[0]
}

// models reads the repositories.
func (s *simulation) models(ctx context.Context) ([]registry.CheckResult, error) {
	settings := registry.Default()
	settings.Repositories = s.Repositories
	models, _, err := registry.Check(ctx, settings, 1)
	return models, err
}

// configuration finds that of a model.
func (s *simulation) configuration(models []registry.CheckResult, model string) (*modelconfig.Config, error) {
	var names []string
	for i := range models {
		switch m := &models[i]; {
		case m.Name != model:
			names = append(names, m.Name)
		case len(m.Problems) > 0 || m.Config == nil:
			return nil, errs.New(errs.ConfigInvalid, "model '%s' has problems: see nereid check %s", model, strings.Join(s.Repositories, " "))
		default:
			return m.Config, nil
		}
	}
	return nil, errs.New(errs.ConfigInvalid, "no model '%s' is in %s, which has %s", model, strings.Join(s.Repositories, ", "), cmp.Or(strings.Join(names, ", "), "none"))
}

// printReports prints a table with a column for each.
func printReports(out io.Writer, reports []*simulate.Report) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	row := func(name string, of func(*simulate.Report) string) {
		cells := []string{name}
		for _, r := range reports {
			cells = append(cells, of(r))
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	count := func(name string, of func(*simulate.Report) int) {
		row(name, func(r *simulate.Report) string { return fmt.Sprint(of(r)) })
	}
	span := func(name string, of func(*simulate.Report) time.Duration) {
		row(name, func(r *simulate.Report) string { return of(r).Round(time.Microsecond).String() })
	}
	row("", func(r *simulate.Report) string { return strings.ToUpper(r.Name) })
	count("arrivals", func(r *simulate.Report) int { return r.Arrivals })
	count("answered in time", func(r *simulate.Report) int { return r.InTime })
	count("late", func(r *simulate.Report) int { return r.Late })
	for _, reason := range reasons(reports, func(r *simulate.Report) map[errs.Reason]int { return r.Refused }) {
		count("refused, "+string(reason), func(r *simulate.Report) int { return r.Refused[reason] })
	}
	for _, reason := range reasons(reports, func(r *simulate.Report) map[errs.Reason]int { return r.Failed }) {
		count("failed, "+string(reason), func(r *simulate.Report) int { return r.Failed[reason] })
	}
	count("canceled", func(r *simulate.Report) int { return r.Canceled })
	count("unfinished", func(r *simulate.Report) int { return r.Unfinished })
	row("false refusals", func(r *simulate.Report) string {
		if r.FalseRefusals == nil {
			return "-"
		}
		return fmt.Sprintf("%d (%.2f %%)", r.FalseRefusals.Requests, 100*r.FalseRefusals.Of)
	})
	row("goodput", func(r *simulate.Report) string { return fmt.Sprintf("%.1f/s", r.Goodput) })
	span("mean", func(r *simulate.Report) time.Duration { return r.Mean })
	span("p50", func(r *simulate.Report) time.Duration { return r.P50 })
	span("p99", func(r *simulate.Report) time.Duration { return r.P99 })
	row("batches", func(r *simulate.Report) string { return fmt.Sprintf("%d of %.2f", r.Batches, r.MeanBatch) })
	row("busy", func(r *simulate.Report) string { return r.Busy.Round(time.Millisecond).String() })
	row("busy, for answers in time", func(r *simulate.Report) string { return fmt.Sprintf("%.1f %%", 100*r.BusyInTime) })
	for _, tenant := range tenants(reports) {
		row("tenant "+cmp.Or(tenant, "(none)"), func(r *simulate.Report) string {
			t := r.Tenants[tenant]
			if t == nil {
				return "-"
			}
			return fmt.Sprintf("%d of %d in time (%.1f %% of all), %d refused, p99 %v", t.InTime, t.Arrivals, 100*t.Part, t.Refused, t.P99.Round(time.Microsecond))
		})
	}
	count("decisions", func(r *simulate.Report) int { return r.Decisions })
	row("decisions a second", func(r *simulate.Report) string {
		if r.Wall == 0 {
			return "-"
		}
		return fmt.Sprintf("%.0f", float64(r.Decisions)/r.Wall.Seconds())
	})
	row("simulated in", func(r *simulate.Report) string {
		if r.Wall == 0 {
			return "-"
		}
		return r.Wall.Round(time.Millisecond).String()
	})
	return w.Flush()
}

// tenants are those of all reports, sorted.
func tenants(reports []*simulate.Report) []string {
	all := make(map[string]bool)
	for _, r := range reports {
		for tenant := range r.Tenants {
			all[tenant] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// reasons are those of all reports, sorted.
func reasons(reports []*simulate.Report, of func(*simulate.Report) map[errs.Reason]int) []errs.Reason {
	all := make(map[errs.Reason]bool)
	for _, r := range reports {
		for reason := range of(r) {
			all[reason] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}
