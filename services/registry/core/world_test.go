package core_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/state"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
)

const (
	ready       = nereidv1.State_STATE_READY
	loading     = nereidv1.State_STATE_LOADING
	unavailable = nereidv1.State_STATE_UNAVAILABLE
)

// lies are what a world reports to its leaders other than it is, and what it executes
// otherwise, so that a rule is without effect.
type lies struct {
	ready     bool // what loads is ready
	applied   bool // gateways apply changes at once
	roomy     bool // workers have memory for everything
	healthy   bool // nothing fails to load
	unordered bool // commands are executed in reverse
}

// world is the store, the repository, workers and a gateway, as a leader's surroundings.
type world struct {
	*rand.Rand
	lies     lies
	explicit bool
	now      time.Time
	store    map[core.Bucket]map[core.Key]stored
	revision map[core.Bucket]uint64
	files    map[string]*content             // by the model's name
	contents map[infer.ModelRef]*content     // of each generation
	workers  map[string]*loader              // by id
	applied  map[string]*nereidv1.ModelValue // by the gateway, at a revision
	known    uint64
	serving  map[string]bool // the gateway had somebody to send a model's requests to
	// excused are models that were removed, or lost a worker that was to serve them next, of
	// which the gateway has not heard.
	excused map[string]bool
	born    int
	epoch   uint64
	away    bool // the store is

	leader, deposed *leader
	writable        int // writes until the leader dies; negative is for good
	waiting         map[uint64]core.Requested
	calls           uint64

	swapped, rolledBack, deaths, answered int
	err                                   error
}

type stored struct {
	value    proto.Message
	revision uint64
}

// content is what the repository has of a model.
type content struct {
	digest string
	bytes  uint64
	bad    bool // it never loads
}

// loader is a worker. It loads what it is assigned, one step later or many.
type loader struct {
	value  *nereidv1.WorkerValue
	loaded map[infer.ModelRef]*nereidv1.WorkerVersion
}

// leader is a core and what is on its way to it.
type leader struct {
	core   *core.Core
	config core.Config
	// history is what the core took.
	history []taken
	events  map[core.Bucket][]core.Event
	reads   []func() core.Event
	due     time.Time
}

func newWorld(seed uint64, l lies) *world {
	w := &world{
		Rand: rand.New(rand.NewPCG(seed, 11)), lies: l, explicit: seed%3 == 2, now: time.Unix(1e9, 0), writable: -1,
		store: make(map[core.Bucket]map[core.Key]stored), revision: make(map[core.Bucket]uint64),
		files: make(map[string]*content), contents: make(map[infer.ModelRef]*content), workers: make(map[string]*loader),
		applied: make(map[string]*nereidv1.ModelValue), serving: make(map[string]bool), excused: make(map[string]bool), waiting: make(map[uint64]core.Requested),
	}
	for _, b := range buckets() {
		w.store[b] = make(map[core.Key]stored)
	}
	w.put(core.Gateways, core.Key{Name: "g"}, &nereidv1.ServiceValue{Schema: nereidv1.Schema, Id: "g"})
	w.elect()
	for range 3 {
		w.join()
	}
	return w
}

func buckets() []core.Bucket {
	return []core.Bucket{core.Models, core.Workers, core.Instances, core.Assignments, core.Gateways, core.Schedulers, core.Leaders, core.Pools}
}

func (w *world) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

// put changes the store, and has the leader hear of it. One that is deposed hears nothing more.
func (w *world) put(b core.Bucket, k core.Key, v proto.Message) uint64 {
	w.revision[b]++
	e := core.Changed{Bucket: b, Key: k, Value: w.told(v), Revision: w.revision[b], Deleted: v == nil}
	if v == nil {
		delete(w.store[b], k)
	} else {
		w.store[b][k] = stored{v, w.revision[b]}
	}
	if w.leader != nil {
		w.leader.events[b] = append(w.leader.events[b], e)
	}
	return w.revision[b]
}

// told is what leaders are told in place of a value.
func (w *world) told(v proto.Message) proto.Message {
	switch v := v.(type) {
	case *nereidv1.WorkerValue:
		if w.lies.roomy {
			v = proto.CloneOf(v)
			v.MemoryBudgetBytes = 0
			return v
		}
	case *nereidv1.ServiceValue:
		if w.lies.applied {
			v = proto.CloneOf(v)
			v.AppliedRevision = 1 << 60
			return v
		}
	case *nereidv1.InstancesValue:
		v = proto.CloneOf(v)
		for _, version := range v.GetVersions() {
			if w.lies.ready && version.GetState() == loading {
				version.State = ready
			}
			if w.lies.healthy && version.GetState() == unavailable {
				version.State, version.Cause, version.Reason = loading, "", ""
			}
		}
		return v
	}
	return v
}

// elect has another leader begin, which knows the store alone. The one before may go on for a
// while. Until then the gateway has caught up: a leadership ends with a lease.
func (w *world) elect() {
	w.learn()
	w.epoch++
	w.deposed = w.leader
	if w.IntN(2) == 0 {
		w.deposed = nil
	}
	config := core.Config{
		Poll: !w.explicit, Explicit: w.explicit, PollEvery: 5 * time.Second, LoadModels: names()[:1], Epoch: w.epoch,
		WorkerGrace: time.Minute, LossGrace: 5 * time.Second, Retry: time.Second, LongestRetry: time.Minute,
		AckTimeout: 5 * time.Second, LagTimeout: time.Hour, LoadTimeout: 24 * time.Hour, Reads: 3,
	}
	w.leader = &leader{
		core: core.New(config), config: config,
		events: make(map[core.Bucket][]core.Event), due: w.now,
	}
	for _, b := range buckets() {
		for _, k := range slices.SortedFunc(maps.Keys(w.store[b]), compareKeys) {
			s := w.store[b][k]
			w.leader.events[b] = append(w.leader.events[b], core.Changed{Bucket: b, Key: k, Value: w.told(s.value), Revision: s.revision})
		}
		w.leader.events[b] = append(w.leader.events[b], core.CaughtUp{Bucket: b, Revision: w.revision[b]})
	}
	for _, b := range buckets() {
		w.deliverAll(w.leader, b)
	}
	if !w.leader.core.Whole() {
		w.fail("the leader does not know that it knows all")
	}
	w.step(w.leader, core.Started{})
	for _, r := range w.waiting { // callers ask again
		w.step(w.leader, r)
	}
}

func compareKeys(a, b core.Key) int {
	return strings.Compare(a.Owner+"/"+a.Name, b.Owner+"/"+b.Name)
}

func (w *world) deliverAll(l *leader, b core.Bucket) {
	for len(l.events[b]) > 0 && l == w.leader {
		e := l.events[b][0]
		l.events[b] = l.events[b][1:]
		w.step(l, e)
	}
}

// lead has the leader take something that has come, or look at the clock.
func (w *world) lead() {
	l := w.leader
	if w.deposed != nil && w.IntN(3) == 0 {
		l = w.deposed
		l.due = w.now // it is slow, and does at once what it had to
		if w.IntN(30) == 0 {
			w.deposed = nil // it has noticed
			return
		}
	}
	b := buckets()[w.IntN(len(buckets()))]
	switch {
	case len(l.reads) > 0 && w.IntN(3) == 0:
		i := w.IntN(len(l.reads))
		read := l.reads[i]
		l.reads = slices.Delete(l.reads, i, i+1)
		w.step(l, read())
	case len(l.events[b]) > 0:
		e := l.events[b][0]
		l.events[b] = l.events[b][1:]
		w.step(l, e)
	case !w.now.Before(l.due):
		w.step(l, core.Tick{})
	}
}

// step has a leader take an event, and does what follows, unless it dies meanwhile.
func (w *world) step(l *leader, e core.Event) {
	for range 1000 {
		effects, step := take(l.core, w.now, e)
		l.history = append(l.history, step)
		l.due = w.now.Add(effects.Wake)
		if effects.Scan != nil {
			l.reads = append(l.reads, func() core.Event { return w.scan(effects.Scan) })
		}
		for _, r := range effects.Reads {
			l.reads = append(l.reads, func() core.Event { return w.read(r) })
		}
		for _, a := range effects.Answers {
			if _, open := w.waiting[a.Caller]; l == w.leader && !open {
				w.fail("call %d is answered twice", a.Caller)
			}
			if l == w.leader {
				delete(w.waiting, a.Caller)
				w.answered++
			}
		}
		if len(effects.Commands) == 0 {
			return
		}
		done, dies := w.execute(l, effects.Commands)
		if dies {
			w.deaths++
			w.writable = -1
			w.elect()
			return
		}
		e = done
	}
	w.fail("the leader goes on writing for ever")
}

var errAway = errors.New("the store is away")

// execute executes commands up to the first that fails.
func (w *world) execute(l *leader, commands []core.Command) (done core.Done, dies bool) {
	if w.lies.unordered {
		commands = slices.Clone(commands)
		slices.Reverse(commands)
		defer func() { slices.Reverse(done.Results) }()
	}
	for _, command := range commands {
		batch, _ := command.(core.Batch)
		if write, is := command.(core.Write); is {
			batch = core.Batch{write}
		}
		var r core.Result
		failed := w.away
		switch command.(type) {
		case core.Touch:
			w.revision[core.Models]++
			r = core.Result{Revisions: []uint64{w.revision[core.Models]}, Errs: []error{nil}}
		case core.Announce, core.MarkSynced:
			r = core.Result{Revisions: []uint64{0}, Errs: []error{nil}}
			if w.away {
				r.Errs[0] = errAway
			}
		}
		for _, write := range batch {
			if l == w.leader && w.writable == 0 {
				return done, true
			}
			if l == w.leader {
				w.writable--
			}
			revision, err := w.write(write)
			r.Revisions, r.Errs = append(r.Revisions, revision), append(r.Errs, err)
			r.Conflict = r.Conflict || err != nil && !errors.Is(err, errAway)
			failed = failed || err != nil
		}
		if done.Results = append(done.Results, r); failed && !w.lies.unordered {
			return done, false
		}
	}
	return done, false
}

func (w *world) write(write core.Write) (uint64, error) {
	if w.away {
		return 0, errAway
	}
	if now := w.store[write.Bucket][write.Key].revision; now != write.Replaces && (write.Value != nil || write.Replaces != 0) {
		return 0, errs.New(errs.StateUnavailable, "the key has revision %d, not %d", now, write.Replaces)
	}
	if write.Bucket == core.Models {
		w.modelWritten(write)
	}
	revision := w.put(write.Bucket, write.Key, write.Value)
	return revision, nil
}

// modelWritten remembers which content a generation is of, and what is excused.
func (w *world) modelWritten(write core.Write) {
	key := write.Key.Name
	value, _ := write.Value.(*nereidv1.ModelValue)
	before, _ := w.store[core.Models][write.Key].value.(*nereidv1.ModelValue)
	if value == nil || value.GetRemoved() || value.GetUnloaded() {
		w.excused[key] = true
	}
	for _, v := range value.GetVersions() {
		ref := publish.IDOf(value).Version(v.GetVersion(), v.GetGeneration())
		if w.contents[ref] != nil {
			continue
		}
		for _, c := range w.files {
			if c.digest == v.GetDigest() {
				w.contents[ref] = c
			}
		}
		if w.contents[ref] == nil {
			w.contents[ref] = &content{digest: v.GetDigest(), bytes: v.GetBytes()}
		}
	}
	if before.GetPrevious() != nil && value != nil && value.GetPrevious() == nil && value.GetFailure() == "" && !value.GetRemoved() && !value.GetUnloaded() {
		w.swapped++
	}
	if before.GetPrevious() != nil && value.GetFailure() != "" && value.GetPrevious() == nil {
		w.rolledBack++
	}
}

func (w *world) scan(s *core.Scan) core.Event {
	snap := new(catalog.Snapshot)
	for _, name := range slices.Sorted(maps.Keys(w.files)) {
		if m := found(name, w.files[name]); s.Reads(m.ID()) {
			snap.Models = append(snap.Models, m)
		} else {
			snap.Models = append(snap.Models, catalog.Model{Name: name, URL: m.URL})
		}
	}
	return core.Scanned{Snapshot: snap}
}

func (w *world) read(r core.Read) core.Event {
	c := w.files[r.Model.Name]
	if c == nil {
		return core.WasRead{Operation: r.Operation, Err: core.UnknownModel(r.Model.Name)}
	}
	return core.WasRead{Operation: r.Operation, Model: found(r.Model.Name, c)}
}

func found(name string, c *content) catalog.Model {
	config := &inference.ModelConfig{
		Name: name, Backend: "echo",
		Input:         []*inference.ModelInput{{Name: "x", DataType: inference.DataType_TYPE_FP32, Dims: []int64{1}}},
		Output:        []*inference.ModelOutput{{Name: "y", DataType: inference.DataType_TYPE_FP32, Dims: []int64{1}}},
		InstanceGroup: []*inference.ModelInstanceGroup{{Name: "g", Count: 1, Kind: inference.ModelInstanceGroup_KIND_CPU}},
		Parameters:    map[string]*inference.ModelParameter{modelconfig.ReplicasKey: {StringValue: "1"}},
	}
	modelconfig.Normalize(config, modelconfig.Directory{Name: name})
	return catalog.Model{
		Name: name, URL: "file:///r/" + name, Config: config,
		Versions: []catalog.Version{{Number: 1, Digest: c.digest, Bytes: c.bytes, URL: "file:///r/" + name + "/1"}},
	}
}

// change puts another content into the repository.
func (w *world) change() {
	w.files[w.name()] = &content{digest: fmt.Sprintf("d%d", w.Uint64()), bytes: uint64(1 + w.IntN(4)), bad: w.IntN(4) == 0}
}

// remove takes a model out of the repository: it need not serve.
func (w *world) remove() {
	if name := w.name(); w.IntN(4) == 0 {
		delete(w.files, name)
	}
}

func (w *world) name() string { return names()[w.IntN(3)] }

// names are those of the models.
func names() []string { return []string{"k", "l", "m"} }

// call has a caller ask for a load or an unload.
func (w *world) call() {
	if !w.explicit || len(w.waiting) > 4 {
		return
	}
	w.calls++
	r := core.Requested{Caller: w.calls, Load: w.IntN(4) > 0, Model: infer.ModelID{Name: w.name()}}
	w.waiting[r.Caller] = r
	w.step(w.leader, r)
}

func (w *world) wait() { w.now = w.now.Add(time.Duration(w.IntN(30)) * time.Second) }

// mortal has the leader die between two writes that come, and breaks the store or mends it.
func (w *world) mortal() { w.writable = w.IntN(4) }

func (w *world) outage() { w.away = !w.away && w.IntN(2) == 0 }

func (w *world) join() {
	if len(w.workers) == 4 {
		return
	}
	w.born++
	id := fmt.Sprint("w", w.born)
	l := &loader{loaded: make(map[infer.ModelRef]*nereidv1.WorkerVersion)}
	l.value = &nereidv1.WorkerValue{
		Schema: nereidv1.Schema, WorkerId: id, Epoch: uint64(w.born), MemoryBudgetBytes: uint64(6 + w.IntN(6)),
		Device: &nereidv1.WorkerDevice{Kind: nereidv1.DeviceKind_DEVICE_KIND_CPU},
	}
	w.workers[id] = l
	w.put(core.Workers, core.Key{Name: id}, l.value)
}

// leave has a worker stop once nothing is assigned to it.
func (w *world) leave() {
	staying := slices.DeleteFunc(slices.Sorted(maps.Keys(w.workers)), func(id string) bool { return w.workers[id].value.GetLeaving() })
	if len(staying) > 2 {
		w.report(staying[w.IntN(len(staying))], func(v *nereidv1.WorkerValue) { v.Leaving = true })
	}
}

func (w *world) report(id string, change func(*nereidv1.WorkerValue)) {
	l := w.workers[id]
	next := proto.CloneOf(l.value)
	if change(next); !proto.Equal(next, l.value) {
		l.value = next
		w.put(core.Workers, core.Key{Name: id}, next)
	}
}

// die ends a worker with all that it has.
func (w *world) die() {
	if len(w.workers) > 1 && w.IntN(2) == 0 {
		ids := slices.Sorted(maps.Keys(w.workers))
		w.end(ids[w.IntN(len(ids))])
	}
}

func (w *world) end(id string) {
	for ref := range w.workers[id].loaded {
		w.excused[ref.Name] = true
	}
	delete(w.workers, id)
	w.put(core.Workers, core.Key{Name: id}, nil)
	for key := range w.serving {
		w.serving[key] = w.serving[key] && w.serves(key)
	}
}

// learn has the gateway apply what the store holds.
func (w *world) learn() {
	clear(w.applied)
	for k, s := range w.store[core.Models] {
		w.applied[k.Name] = s.value.(*nereidv1.ModelValue)
	}
	w.known = w.revision[core.Models]
	for key := range w.excused {
		w.serving[key] = false
	}
	if w.leader == nil || len(w.leader.events[core.Workers]) == 0 { // else it may not know of a worker's end
		clear(w.excused)
	}
	w.put(core.Gateways, core.Key{Name: "g"}, &nereidv1.ServiceValue{
		Schema: nereidv1.Schema, Id: "g", AppliedRevision: w.known, WorkersRevision: w.revision[core.Workers], InstancesRevision: w.revision[core.Instances],
	})
}

// load has each worker come closer to what it is assigned.
func (w *world) load() {
	for _, id := range slices.Sorted(maps.Keys(w.workers)) {
		l := w.workers[id]
		wanted := make(map[infer.ModelRef]*nereidv1.AssignedVersion)
		assigned := false
		for name, part := range w.parts(id) {
			for _, v := range part.GetVersions() {
				wanted[state.RefOf(v.GetModel())] = v
			}
			assigned = assigned || name != ""
		}
		for ref := range l.loaded {
			if wanted[ref] == nil {
				delete(l.loaded, ref)
			}
		}
		for _, ref := range slices.SortedFunc(maps.Keys(wanted), infer.ModelRef.Compare) {
			w.loadOne(l, ref, wanted[ref])
		}
		w.report(id, func(v *nereidv1.WorkerValue) { v.AssignmentRevision = w.revision[core.Assignments] })
		w.reportInstances(id)
		if l.value.GetLeaving() && !assigned {
			w.end(id)
		}
	}
}

// parts gives what a worker runs, by the model: it refuses what a leader has assigned after it
// was deposed.
func (w *world) parts(id string) map[string]*nereidv1.AssignmentValue {
	parts := make(map[string]*nereidv1.AssignmentValue)
	fence := w.store[core.Assignments][core.Key{Owner: id}]
	raised, _ := fence.value.(*nereidv1.AssignmentValue)
	for k, s := range w.store[core.Assignments] {
		part := s.value.(*nereidv1.AssignmentValue)
		late := s.revision > fence.revision && part.GetLeaderEpoch() < raised.GetLeaderEpoch()
		if k.Owner == id && !late {
			parts[k.Name] = part
		}
	}
	return parts
}

func (w *world) loadOne(l *loader, ref infer.ModelRef, v *nereidv1.AssignedVersion) {
	has := l.loaded[ref]
	switch {
	case has == nil:
		l.loaded[ref] = &nereidv1.WorkerVersion{Model: v.GetModel(), State: loading, Groups: v.GetGroups()}
	case has.GetState() != loading || w.IntN(2) == 0:
	case w.contents[ref].bad:
		l.loaded[ref] = &nereidv1.WorkerVersion{Model: v.GetModel(), State: unavailable, Cause: "bad", Reason: string(errs.LoadFailed)}
	case w.IntN(8) == 0:
		l.loaded[ref] = &nereidv1.WorkerVersion{Model: v.GetModel(), State: unavailable, Cause: "full", Reason: string(errs.CacheFull)}
	default:
		l.loaded[ref] = &nereidv1.WorkerVersion{Model: v.GetModel(), State: ready, Groups: v.GetGroups()}
	}
}

// reportInstances writes what a worker has of each model.
func (w *world) reportInstances(id string) {
	l := w.workers[id]
	for _, name := range names() {
		k := core.Key{Owner: id, Name: name}
		says := &nereidv1.InstancesValue{Schema: nereidv1.Schema, WorkerId: id, Epoch: l.value.GetEpoch()}
		for _, ref := range slices.SortedFunc(maps.Keys(l.loaded), infer.ModelRef.Compare) {
			if ref.Name == name {
				says.Versions = append(says.Versions, l.loaded[ref])
			}
		}
		before, there := w.store[core.Instances][k]
		switch {
		case len(says.GetVersions()) == 0 && there:
			w.put(core.Instances, k, nil)
		case len(says.GetVersions()) > 0 && (!there || !proto.Equal(before.value, says)):
			w.put(core.Instances, k, says)
		}
	}
}
