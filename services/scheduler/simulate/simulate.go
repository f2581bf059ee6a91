package simulate

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/scheduler/core"
)

// Policy names a scheduling policy.
type Policy string

// The policies.
const (
	// Nereid is the scheduler's core.
	Nereid Policy = "nereid"
	// FIFO is first in, first out, without regard to deadlines.
	FIFO Policy = "fifo"
)

// Config says how to simulate a workload.
type Config struct {
	Policy Policy
	Costs  *Costs
	// SameTime says that the costs come from the simulated trace itself: samples are drawn from about the same time.
	SameTime bool
	Way      Way
	// Seed seeds the random draws.
	Seed uint64
	// Clock measures how long the simulation takes; nil does not measure it.
	Clock mono.Clock
	// Recorder is notified of each step of the core; nil is none. See [decisionlog.Writer].
	Recorder Recorder
}

// Recorder records what enters the core and what it decides.
type Recorder interface {
	Event(now mono.Time, e *core.Event)
	Decided([]core.Decision)
}

// Run simulates a workload. It fails with the reason config_invalid if a model has arrivals but no costs on a kind of
// device that it has instances on.
func Run(w *Workload, c Config) (*Report, error) {
	if err := checkCosts(w, c.Costs); err != nil {
		return nil, err
	}
	e := &engine{
		Workload: w, costs: c.Costs, sameTime: c.SameTime, way: c.Way, rng: rand.New(rand.NewPCG(c.Seed, 1)), results: make([]result, len(w.Arrivals)),
		instances: make(map[infer.InstanceID]*instance),
	}
	if c.Policy == FIFO {
		e.policy = newFIFO(e)
	} else {
		e.policy = newNereid(e, c.Recorder)
	}
	var began mono.Time
	if c.Clock != nil {
		began = c.Clock.Now()
	}
	e.run()
	var took time.Duration
	if c.Clock != nil {
		took = c.Clock.Now().Sub(began)
	}
	r := newReport(string(c.Policy), w, e.results, e.usage)
	r.Decisions, r.Wall = e.policy.decisions(), took
	return r, nil
}

// Pool replaces the instances of a workload: from its start there are the given number of devices, of the kind that
// the model has costs on, each with the given number of instances of each model.
func (w *Workload) Pool(devices, instances int, costs *Costs) {
	begin := w.Arrivals[0].At
	if len(w.Changes) > 0 {
		begin = min(begin, w.Changes[0].At)
	}
	w.pool(begin, devices, func(int) int { return instances }, func(m int) string {
		if kinds := costs.Kinds(w.Models[m].Ref.ID().Key()); len(kinds) > 0 {
			return kinds[0]
		}
		return "cpu" // no requests arrive for it, or they are refused
	})
}

func checkCosts(w *Workload, costs *Costs) error {
	asked := make(map[infer.ModelRef]bool)
	for i := range w.Arrivals {
		asked[w.Models[w.Arrivals[i].Model].Ref] = true
	}
	for i := range w.Changes {
		g := w.Changes[i].Event.Grant
		if g == nil || !asked[g.Model] {
			continue
		}
		kind, _, _ := strings.Cut(g.Device, ":")
		model := g.Model.ID().Key()
		if costs.of[device{model, kind}] == nil {
			known := "there are none of it"
			if kinds := costs.Kinds(model); len(kinds) > 0 {
				known = fmt.Sprintf("there are those on %s", strings.Join(kinds, ", "))
			}
			return errs.New(errs.ConfigInvalid, "the costs of model '%s' on %s are not known, %s: add lines of it to the table of costs", model, kind, known).WithModel(model)
		}
	}
	return nil
}
