package core

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
)

// Config configures a core. Its durations are positive.
type Config struct {
	// Poll has the core follow the repositories, Explicit load what it is asked to. With
	// neither it loads all models once.
	Poll, Explicit bool
	// PollEvery is the time between two scans, where there are such.
	PollEvery time.Duration
	// LoadModels are the names of models that the start loads under explicit control;
	// LoadAll is all of them.
	LoadModels []string
	LoadAll    bool
	// Namespacing has models of one name be served from several repositories.
	Namespacing bool
	Pools       publish.Pools
	// Epoch is the leadership's, higher than those before it.
	Epoch uint64
	// Sweeps is whether files that came with loads are to be swept.
	Sweeps bool

	// FileQuietPeriod and ObjectQuietPeriod are how long files and objects must have been
	// left alone to be taken.
	FileQuietPeriod, ObjectQuietPeriod time.Duration
	// WorkerGrace is how long the assignments of a lost worker are kept, and LossGrace how
	// long all workers may take to return after the store has lost its state.
	WorkerGrace, LossGrace time.Duration
	// Retry is how long to wait after a failure; pauses that grow end at LongestRetry.
	Retry, LongestRetry time.Duration
	// AckTimeout is how long updates wait for a gateway to report that it knows what workers
	// reported. LagTimeout is how long what was replaced waits for a gateway or scheduler to
	// apply the models: after it the old generation goes.
	AckTimeout, LagTimeout time.Duration
	// LoadTimeout is how long a load waits for workers before its caller gets an error. The
	// load goes on.
	LoadTimeout time.Duration
	// Reads is how often a load reads files that change meanwhile.
	Reads int
}

// Core decides for one leadership. It is not safe for concurrent use.
type Core struct {
	cfg Config
	now time.Time // of the present step
	out Effects
	due time.Time // of the next pass, at the latest

	buckets
	fleet      fleet
	scans      scans
	operations operations
	rollouts   rollouts
	placement  placement
	memory     memory

	lost    *Started // what the store has lost; nil until that is known
	started bool     // the store holds what it should
	// published is whether the bucket models has had all that a scan found, synced that the
	// buckets are marked so, announced that everybody has been told.
	published, synced, announced bool
	poolsWritten                 bool
	swept                        bool // no given files are there that no model needs

	// inFlight are the commands of the last step, by their order, and then what follows when
	// all have come through.
	inFlight []pending
	then     func()
}

// pending is a command whose result is to come.
type pending struct {
	command Command
	then    func() // if it came through; may be nil
}

// also has something more follow when the command has come through.
func (p *pending) also(then func()) {
	first := p.then
	p.then = func() {
		if first != nil {
			first()
		}
		then()
	}
}

// New makes a core that knows nothing of the store yet.
func New(cfg Config) *Core {
	return &Core{
		cfg: cfg, buckets: newBuckets(), fleet: newFleet(), scans: newScans(), operations: newOperations(),
		rollouts: newRollouts(cfg.Retry, cfg.LongestRetry), placement: newPlacement(), memory: newMemory(),
	}
}

// Whole reports whether all that the store held is known. The core then waits for a [Started].
func (c *Core) Whole() bool { return c.whole() }

// Workers gives the values of the workers that are alive, by id.
func (c *Core) Workers() map[string]*nereidv1.WorkerValue {
	live := make(map[string]*nereidv1.WorkerValue, len(c.workers.entries))
	for k, e := range c.workers.entries {
		if e.value != nil {
			live[k.Name] = e.value
		}
	}
	return live
}

// Step takes an event at a time. Until a [Done] has brought the results of its commands no
// other event may follow.
func (c *Core) Step(now time.Time, e Event) Effects {
	c.now, c.out = now, Effects{}
	if c.receive(e) && c.lost != nil && len(c.inFlight) == 0 {
		c.due = now.Add(c.cfg.WorkerGrace)
		c.pass()
	}
	c.out.Wake = max(c.due.Sub(now), 0)
	return c.out
}

// receive takes an event and reports whether a pass is to follow.
func (c *Core) receive(e Event) bool {
	switch e := e.(type) {
	case Changed:
		return c.changed(e)
	case CaughtUp:
		c.caughtUp(e)
		c.out.WorkersChanged = e.Bucket == Workers
		return true
	case Started:
		c.lost = &e
	case Done:
		return c.done(e)
	case Scanned:
		c.scanned(e)
	case Requested:
		c.request(e)
	case WasRead:
		c.wasRead(e)
	case WorkersCanComplete:
		c.scanForCompletion()
	}
	return true
}

// changed takes a change of a bucket and reports whether anything depends on it.
func (c *Core) changed(e Changed) bool {
	switch e.Bucket {
	case Models:
		if !c.models.apply(e) {
			return false
		}
		c.modelChanged(e.Key.Name)
		return true
	case Workers:
		return c.workerChanged(e)
	case Instances:
		return c.instancesChanged(e)
	case Assignments:
		if !c.assignments.apply(e) {
			return false
		}
		c.assignmentChanged(e.Key)
		return true
	case Gateways:
		return c.gateways.apply(e) && c.serviceChanged()
	case Schedulers:
		return c.schedulers.apply(e) && c.serviceChanged()
	case Leaders:
		return c.leaders.apply(e) && !e.Deleted && c.rateLimitChanged(e)
	case Pools:
		news := c.pools.apply(e)
		c.poolsWritten = c.poolsWritten && !news
		return news
	}
	return false
}

// waits reports whether anything depends on what other services report.
func (c *Core) waits() bool {
	return c.operations.any() || c.rollouts.any() || c.placement.moves()
}

// pass does what there is to do, up to the first part that has something to write.
func (c *Core) pass() {
	for _, part := range []func(){
		c.restore, c.startScan, c.publish, c.markSynced, c.announce, c.writePools, c.applyOperations, c.place, c.advanceRollouts, c.deleteRevoked, c.answerOperations, c.expireWorkers,
	} {
		if part(); len(c.inFlight) > 0 {
			return
		}
	}
	c.sweep()
	c.wakeLatest()
}

// wakeLatest says when to look again at the latest.
func (c *Core) wakeLatest() {
	if c.published && c.operations.ready() { // the one before on its model has just been answered
		c.wake(0)
	}
	if c.waits() {
		c.wake(c.cfg.Retry) // a gateway may be late for good
		c.placement.touchMigrating()
	}
	if left := c.placement.deadline.Sub(c.now); left > 0 {
		c.wake(left)
	}
	if c.scans.due && !c.scans.going {
		c.wake(c.scans.next.Sub(c.now))
	}
}

// wake has the next pass be made after a time at the latest.
func (c *Core) wake(d time.Duration) {
	if at := c.now.Add(d); at.Before(c.due) {
		c.due = at
	}
}

// write has a change be made. then, which may be nil, follows when it has come through.
func (c *Core) write(command Command, then func()) {
	c.inFlight = append(c.inFlight, pending{command, then})
	c.out.Commands = append(c.out.Commands, command)
}

// whenDone has something follow when all that the part has written came through; at once, if
// that is nothing.
func (c *Core) whenDone(then func()) {
	if len(c.inFlight) == 0 {
		then()
		return
	}
	c.then = then
}

// done takes the results of the last commands and reports whether to go on. Where the store
// has refused a value, what stands in its place is written, and the rest after it.
func (c *Core) done(e Done) bool {
	all, then := c.inFlight, c.then
	c.inFlight, c.then = nil, nil
	for i, p := range all {
		if i >= len(e.Results) {
			return false
		}
		r := e.Results[i]
		failed := c.record(p.command, r)
		if failed == nil {
			if p.then != nil {
				p.then()
			}
			continue
		}
		if instead, ok := c.insteadOf(p, failed); ok {
			for _, next := range append(instead, all[i+1:]...) {
				c.write(next.command, next.then)
			}
			if c.then = then; len(c.inFlight) == 0 && then != nil {
				c.then = nil
				then()
			}
			return true
		}
		if c.due = c.now.Add(c.cfg.Retry); !r.Conflict {
			c.note(Warn, "state not written", field("reason", string(errs.Of(failed))), field("error", failed))
		}
		return false
	}
	if then != nil {
		then()
	}
	return true
}

// record records the writes of a command that came through, and returns the error of one
// that did not.
func (c *Core) record(command Command, r Result) (failed error) {
	writes := Batch(nil)
	switch command := command.(type) {
	case Write:
		writes = Batch{command}
	case Batch:
		writes = command
	}
	for i, w := range writes {
		if r.Errs[i] != nil {
			failed = r.Errs[i]
			continue
		}
		c.wrote(w, r.Revisions[i])
	}
	if len(writes) > 0 {
		return failed
	}
	if r.Errs[0] == nil && command == (Touch{}) {
		c.models.revision = max(c.models.revision, r.Revisions[0])
	}
	return r.Errs[0]
}

// wrote records a write that came through.
func (c *Core) wrote(w Write, revision uint64) {
	switch w.Bucket {
	case Models:
		value, _ := w.Value.(*nereidv1.ModelValue)
		c.drainReplaced(w.Key.Name, value, max(revision, c.models.revision+1))
		if value == nil {
			c.rollouts.rejected.Remove(w.Key.Name)
		}
		c.models.written(w, revision)
		c.modelChanged(w.Key.Name)
	case Assignments:
		c.assignments.written(w, revision)
		c.assignmentChanged(w.Key)
	case Instances:
		c.instances.written(w, revision)
	case Pools:
		c.pools.written(w, revision)
	}
}

// insteadOf gives what is done where the store has refused a model's value for good: of one
// that is too large its problem is written, and one that it cannot name is left out.
func (c *Core) insteadOf(p pending, err error) (instead []pending, ok bool) {
	w, is := p.command.(Write)
	if !is || w.Bucket != Models || w.Value == nil {
		return nil, false
	}
	id := infer.ParseModelID(w.Key.Name)
	switch errs.Of(err) {
	case errs.BodyTooLarge:
		c.note(Error, "model does not fit into its bucket", field("model", id), field("reason", string(errs.Of(err))), field("error", err))
		before := c.model(w.Key.Name)
		value := publish.TooLarge(before, id, errs.From(err).Msg+": shorten its configuration")
		if proto.Equal(value, before) || proto.Equal(value, w.Value) {
			return nil, true
		}
		w.Value = value
		return []pending{{w, p.then}}, true
	case errs.InvalidParameter:
		c.note(Error, "model cannot be published", field("model", id), field("reason", string(errs.Of(err))), field("error", err))
		return nil, true
	}
	return nil, false
}

// modelChanged follows a model's value.
func (c *Core) modelChanged(key string) {
	c.placement.touch(key)
	c.rollouts.follow(key, c.model(key))
}

// note has the log say something.
func (c *Core) note(level Level, text string, fields ...Field) {
	c.out.Notes = append(c.out.Notes, Note{level, text, fields})
}

func field(name string, value any) Field { return Field{name, value} }

// ofModel are the fields that name a loaded version.
func ofModel(ref infer.ModelRef) []Field {
	return []Field{{"model", ref.ID().String()}, {"version", ref.Version}, {"generation", ref.Generation}}
}
