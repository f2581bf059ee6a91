package core

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
)

// maxQueued bounds the operations that wait for another on the same model.
const maxQueued = 64

// phase is how far an operation has come.
type phase uint8

const (
	queued     phase = iota // another on the same model runs
	reading                 // its model is being read, or read again
	steps                   // the models of its steps are loaded
	ready                   // its model's value is to be written
	loading                 // the workers load it
	concluding              // it has an outcome, which all are to know
	ended
)

// operation is a load or unload that a caller or an ensemble's load waits for.
type operation struct {
	number    uint64
	load      bool
	id        infer.ModelID
	caller    uint64     // 0 for a step of an ensemble
	parent    *operation // the ensemble's load; nil for a caller's
	overrides bool       // the caller gives a configuration or files
	// dependents is whether what an unloaded ensemble alone used goes too.
	dependents bool

	phase    phase
	began    time.Time
	model    catalog.Model // as it was read
	attempts int           // how often its files had changed when they were loaded
	// awaited are the loads of an ensemble's steps, in their order, and open how many of them
	// have not ended.
	awaited []*operation
	open    int
	// replaced are loaded versions whose end the answer waits for.
	replaced []infer.ModelRef
	outcome  error
	// revision of the bucket models, and reports of workers, are what all must know before
	// the answer; concluded is when they were.
	revision  uint64
	reports   reports
	concluded time.Time
}

func (o *operation) key() string { return o.id.Key() }

// above reports whether an operation or one that waits for it is on a model.
func (o *operation) above(id infer.ModelID) bool {
	for ; o != nil; o = o.parent {
		if o.id == id {
			return true
		}
	}
	return false
}

// operations are those that have not been answered: one of each model runs, and the others
// wait in the order in which they came.
type operations struct {
	last    uint64
	running map[string]*operation // by the model's key
	queued  map[string][]*operation
	// implicit are the models, by key, that were loaded for ensembles alone. A new leader
	// knows of none, and leaves them loaded.
	implicit map[string]bool
}

func newOperations() operations {
	return operations{running: make(map[string]*operation), queued: make(map[string][]*operation), implicit: make(map[string]bool)}
}

func (s *operations) any() bool { return len(s.running) > 0 }

// list gives the running operations, in the order of the models' keys.
func (s *operations) list() []*operation {
	return slices.SortedFunc(maps.Values(s.running), func(a, b *operation) int { return cmp.Compare(a.key(), b.key()) })
}

// add runs an operation or, while another runs on the model, queues it.
func (s *operations) add(o *operation) (runs bool, err error) {
	key := o.key()
	s.last++
	o.number = s.last
	if s.running[key] == nil {
		s.running[key] = o
		return true, nil
	}
	if len(s.queued[key]) == maxQueued {
		return false, errs.New(errs.LoadConflict, "a related model '%s' to a load/unload request is currently loading or unloading", o.id).WithModel(o.id.Name)
	}
	s.queued[key] = append(s.queued[key], o)
	return false, nil
}

// end ends the running operation of a model and returns the next one, which runs; nil if none
// waits.
func (s *operations) end(key string) *operation {
	delete(s.running, key)
	waiting := s.queued[key]
	if len(waiting) == 0 {
		return nil
	}
	if s.queued[key] = waiting[1:]; len(waiting) == 1 {
		delete(s.queued, key)
	}
	s.running[key] = waiting[0]
	return waiting[0]
}

// ready reports whether something is to be written for an operation.
func (s *operations) ready() bool {
	for _, o := range s.running {
		if o.phase == ready {
			return true
		}
	}
	return false
}

// awaits reports whether the operations on an ensemble wait, through its steps, for the one on
// another model.
func (s *operations) awaits(ensemble, model infer.ModelID) bool {
	waits := func(o *operation) bool {
		return o.parent != nil && o.parent.id == ensemble && (o.id == model || s.awaits(o.id, model))
	}
	for _, o := range s.running {
		if waits(o) {
			return true
		}
	}
	for _, list := range s.queued {
		if slices.ContainsFunc(list, waits) {
			return true
		}
	}
	return false
}

// request starts a caller's operation, or queues it behind those on the same model.
func (c *Core) request(e Requested) {
	o := &operation{load: e.Load, id: e.Model, caller: e.Caller, overrides: e.Overrides, dependents: e.Dependents, began: c.now}
	runs, err := c.operations.add(o)
	switch {
	case err != nil:
		c.out.Answers = append(c.out.Answers, Answer{o.caller, err})
	case runs:
		c.run(o)
	}
}

// run starts an operation that is the only one of its model.
func (c *Core) run(o *operation) {
	if o.phase = ready; !o.load {
		return
	}
	if o.parent == nil || c.known(o.id) == nil {
		c.operations.implicit[o.key()] = o.parent != nil
	}
	c.read(o)
}

// read has the model of a load be read.
func (c *Core) read(o *operation) {
	o.phase = reading
	c.out.Reads = append(c.out.Reads, Read{Operation: o.number, Caller: o.caller, Model: o.id, Retained: c.retainedOverride(o)})
}

// retainedOverride is the value of a model that serves by a configuration from the load API,
// if the operation gives no other; else nil. A load that has failed since ends it.
func (c *Core) retainedOverride(o *operation) *nereidv1.ModelValue {
	value := c.model(o.key())
	rejected := c.rollouts.rejected.Value(o.key()) != nil && !c.rollouts.rejected.Passing(o.key())
	if o.overrides || !value.GetOverridden() || value.GetPrevious() != nil || rejected || publish.Serving(value, c.knowledge(false)) == nil {
		return nil
	}
	return value
}

// wasRead takes the model of a load, and has the steps of an ensemble be loaded before it, as
// far as they are not as the repositories have them.
func (c *Core) wasRead(e WasRead) {
	var o *operation
	for _, running := range c.operations.running {
		if running.number == e.Operation {
			o = running
		}
	}
	if o == nil || o.phase != reading {
		return
	}
	if e.Err != nil {
		c.answer(o, e.Err)
		return
	}
	o.model, o.phase, o.awaited = e.Model, steps, nil
	for _, id := range catalog.Steps(o.id, e.Model.Config) {
		if !o.above(id) { // else the comparison with its steps reports the circle
			o.awaited = append(o.awaited, &operation{load: true, id: id, parent: o, began: c.now})
		}
	}
	o.open = len(o.awaited)
	for _, step := range o.awaited {
		c.requestStep(step)
	}
	c.stepsLoaded(o)
}

// requestStep starts the load of an ensemble's step. One that waits for the ensemble itself is
// not waited for: the comparison with the steps reports the circle.
func (c *Core) requestStep(step *operation) {
	if c.operations.awaits(step.id, step.parent.id) {
		c.endStep(step, nil)
		return
	}
	runs, err := c.operations.add(step)
	switch {
	case err != nil:
		c.endStep(step, err)
	case runs:
		c.run(step)
	}
}

func (c *Core) endStep(step *operation, err error) {
	step.outcome = err
	step.parent.open--
}

// stepsLoaded goes on with an ensemble whose steps' loads have all ended: with the first that
// failed, in their order, it fails.
func (c *Core) stepsLoaded(o *operation) {
	if o.phase != steps || o.open > 0 {
		return
	}
	for _, step := range o.awaited {
		if step.outcome == nil {
			continue
		}
		text := fmt.Sprintf("load failed for model '%s': ensemble '%s' depends on '%s' which has no loaded version. Model '%s' loading failed with error: %s",
			o.id, o.id.Name, step.id.Name, step.id.Name, strings.TrimPrefix(errs.From(step.outcome).Msg, "load failed for model '"+step.id.String()+"': "))
		if errs.Of(step.outcome) == errs.LoadUnknownModel {
			text = fmt.Sprintf("load failed for model '%s': ensemble %s contains models that are not available or ambiguous: %s (%s)",
				o.id, o.id.Name, step.id.Name, errs.From(step.outcome).Msg)
		}
		c.answer(o, loadFailed(o.id, text))
		return
	}
	c.noteProblems(o.model)
	o.phase = ready
}

// applyOperations writes what the operations that can go on ask for.
func (c *Core) applyOperations() {
	if !c.published {
		return
	}
	for _, o := range c.operations.list() {
		switch {
		case o.phase != ready:
		case o.load:
			c.applyLoad(o)
		default:
			c.applyUnload(o)
		}
	}
}

func (c *Core) applyLoad(o *operation) {
	e := c.models.entries[Key{Name: o.key()}]
	m := c.composed([]catalog.Model{o.model})[0]
	w, changed := publish.DiffModel(m, publish.Model{Value: e.value, Revision: e.revision}, c.models.revision, c.knowledge(true))
	if changed {
		c.writeFound(w)
		c.inFlight[len(c.inFlight)-1].also(func() { c.loadWritten(o, m) })
		return
	}
	c.loadWritten(o, m)
}

// loadWritten goes on with a load whose model's value is written: it waits for the workers,
// unless there is nothing to load.
func (c *Core) loadWritten(o *operation, m catalog.Model) {
	if m.Problem != "" && !m.LoadFailed() {
		c.conclude(o, NotPolled(o.id.Name, errs.New(errs.ConfigInvalid, "%s", m.Problem)))
		return
	}
	value := c.model(o.key())
	if cause := cmp.Or(value.GetProblem(), value.GetFailure()); cause != "" {
		c.conclude(o, loadFailed(o.id, "load failed for model '"+o.id.String()+"': "+cause))
		return
	}
	c.rollouts.rejected.Remove(o.key())
	o.phase = loading
}

// applyUnload unloads a model and, with dependents, what was loaded for it alone.
func (c *Core) applyUnload(o *operation) {
	value := c.model(o.key())
	var writes []Write
	if loaded(value) {
		writes = append(writes, c.replace(o.key(), publish.Unloaded(value)))
	}
	if o.dependents {
		for _, id := range c.unused(value, map[infer.ModelID]bool{o.id: true}) {
			writes = append(writes, c.replace(id.Key(), publish.Unloaded(c.model(id.Key()))))
		}
	}
	if len(writes) == 0 {
		c.answer(o, nil)
		return
	}
	for i, w := range writes {
		c.write(w, func() {
			if w.Key.Name != o.key() {
				delete(c.operations.implicit, w.Key.Name)
			}
			if i == len(writes)-1 {
				c.rollouts.rejected.Remove(o.key())
				c.conclude(o, nil)
			}
		})
	}
}

// unused are the models that were loaded for an ensemble alone, and for those alone that go
// with it. gone are those that go.
func (c *Core) unused(ensemble *nereidv1.ModelValue, gone map[infer.ModelID]bool) (ids []infer.ModelID) {
	for _, id := range catalog.Steps(publish.IDOf(ensemble), ensemble.GetConfig()) {
		value := c.model(id.Key())
		if gone[id] || !c.operations.implicit[id.Key()] || c.operations.running[id.Key()] != nil || !loaded(value) || c.used(id, gone) {
			continue
		}
		gone[id] = true
		ids = append(append(ids, id), c.unused(value, gone)...)
	}
	return ids
}

// used reports whether a loaded ensemble that does not go has the model as a step.
func (c *Core) used(id infer.ModelID, gone map[infer.ModelID]bool) bool {
	for k, e := range c.models.entries {
		of := infer.ParseModelID(k.Name)
		if !gone[of] && loaded(e.value) && slices.Contains(catalog.Steps(of, e.value.GetConfig()), id) {
			return true
		}
	}
	return false
}

func loaded(v *nereidv1.ModelValue) bool {
	return v.GetProblem() != "" || slices.ContainsFunc(v.GetVersions(), func(v *nereidv1.ModelVersion) bool {
		return v.GetDesired() == nereidv1.DesiredState_DESIRED_STATE_SERVE
	})
}

// known is the configuration by which a model serves or is to serve; nil without.
func (c *Core) known(id infer.ModelID) *inference.ModelConfig {
	value := c.model(id.Key())
	if !loaded(value) || value.GetProblem() != "" {
		return nil
	}
	return value.GetConfig()
}

// composed compares the ensembles among models that were read together with their steps: those
// read, and those that are known for the rest.
func (c *Core) composed(models []catalog.Model) []catalog.Model {
	read := make(map[infer.ModelID]*inference.ModelConfig, len(models))
	for i := range models {
		if m := &models[i]; m.Config != nil || m.Problem != "" {
			read[m.ID()] = m.Config
		}
	}
	configs := catalog.Configs(func(id infer.ModelID) *inference.ModelConfig {
		if config, ok := read[id]; ok {
			return config
		}
		return c.known(id)
	})
	composed := make([]catalog.Model, len(models))
	for i, m := range models {
		composed[i] = configs.Compose(m)
	}
	return composed
}

// conclude gives an operation its outcome. The answer follows when all know it: a caller that
// has it must find the outcome at every gateway.
func (c *Core) conclude(o *operation, err error) {
	o.phase, o.outcome, o.concluded = concluding, err, c.now
	o.revision, o.reports = c.models.entries[Key{Name: o.key()}].revision, c.fleet.changed
}

// answerOperations answers those whose outcome all know, and those that workers take too long
// for.
func (c *Core) answerOperations() {
	for _, o := range c.operations.list() {
		known := len(c.behind(o.revision)) == 0 && c.reportsAcknowledged(o.reports) || c.now.Sub(o.concluded) >= c.cfg.AckTimeout
		switch left := o.began.Add(c.cfg.LoadTimeout).Sub(c.now); {
		case o.phase == concluding && known && !c.reported(o.key(), o.replaced):
			c.answer(o, o.outcome)
		case o.phase == concluding:
		case left <= 0 && o.load:
			c.answer(o, loadFailed(o.id, fmt.Sprintf("load failed for model '%s': it has not ended within %v, and goes on: see the repository index and nereid status", o.id, c.cfg.LoadTimeout)))
		case o.load:
			c.wake(left)
		}
	}
}

// answer ends an operation, and starts the next on the same model. A step of an ensemble goes
// on with what serves, if its load fails.
func (c *Core) answer(o *operation, err error) {
	o.phase, c.swept = ended, false
	fields := []Field{field("model", o.id), field("load", o.load)}
	if err != nil {
		fields = append(fields, field("cause", errs.From(err).Msg))
	}
	c.note(Info, "model control", fields...)
	next := c.operations.end(o.key())
	if o.parent == nil {
		c.out.Answers = append(c.out.Answers, Answer{o.caller, err})
	} else {
		if publish.Serving(c.model(o.key()), c.knowledge(false)) != nil {
			err = nil
		}
		c.endStep(o, err)
		c.stepsLoaded(o.parent)
	}
	if next != nil {
		next.began = c.now
		c.run(next)
	}
}

// sweep has files that came with loads be removed where no model is made of them any more.
// No operation is under way, so that none is being written.
func (c *Core) sweep() {
	if c.swept || !c.cfg.Sweeps || !c.published || c.waits() {
		return
	}
	c.swept = true
	c.out.Sweep = make(map[string]bool, len(c.models.entries))
	for _, e := range c.models.entries {
		c.out.Sweep[e.value.GetUrl()] = true
	}
}

func loadFailed(model infer.ModelID, text string) *errs.Error {
	return errs.New(errs.LoadFailed, "%s", text).WithModel(model.Name)
}

// NotPolled says why a load found nothing to load. The status is Triton's, whose message ends
// before the cause.
func NotPolled(model string, cause error) *errs.Error {
	return errs.Wrap(errs.LoadUnknownModel, cause, "%s: %s", UnknownModel(model).Msg, errs.From(cause).Msg).WithModel(model)
}

// UnknownModel is the error of a load of a model that no repository has.
func UnknownModel(model string) *errs.Error {
	return errs.New(errs.LoadUnknownModel, "failed to load '%s', failed to poll from model repository", model).WithModel(model)
}
