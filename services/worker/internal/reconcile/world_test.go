package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/memory"
	"github.com/nereid-serving/nereid/services/worker/internal/sequence"
	"github.com/nereid-serving/nereid/services/worker/internal/source"
)

const linger = time.Second

// world is a reconciler's surroundings: one backend whose loads do what the
// test says, and instances that retire when the test says. It is used inside
// synctest bubbles, where tests read its fields when all is quiet.
type world struct {
	t    *testing.T
	loop *Reconciler
	stop func()

	load     func(ctx context.Context, ref infer.ModelRef) error // nil loads at once
	verify   func() error                                        // of files that were found; nil finds them as they were
	run      func(backend.Batch)                                 // answers before the end of an execution; nil succeeds
	instance func(name string) error                             // makes an instance; nil succeeds but for _3
	backend  string                                              // of what is desired
	separate bool                                                // instances are made at the same time
	progress string                                              // what a fetch tells; empty is nothing
	files    atomic.Int32                                        // that were fetched and not closed
	stuck    bool                                                // instances never close, so that their files stay open

	retire chan bool                       // closed: instances retire at once
	away   []func(infer.InstanceID, error) // of the instances that were opened

	busy []infer.ModelID // whose backend was still at work when the loop ended

	mu      sync.Mutex
	log     []string                          // what happened; guarded by mu
	slots   uint32                            // guarded by mu
	runs    map[infer.ModelID][]VersionStatus // guarded by mu
	told    map[infer.ModelID]int             // how often something was said of a model; guarded by mu
	reached Revisions                         // guarded by mu
	loading int                               // guarded by mu
	most    int                               // loads at the same time; guarded by mu
	memory  uint64                            // guarded by mu
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, retire: make(chan bool), runs: make(map[infer.ModelID][]VersionStatus), told: make(map[infer.ModelID]int)}
	close(w.retire)
	w.loop = New(Config{Loads: 2, EngineLoads: 1, Linger: linger, Drain: time.Minute}, Deps{
		Sequences: func(v backend.Version) (*sequence.Model, error) {
			return sequence.Prepare(v, sequence.Deps{Clock: mono.New()})
		},
		Backend:   func(string) (backend.Backend, error) { return w, nil },
		Source:    sourceOf{w},
		Instances: instancesOf{w},
		Meter:     memory.NewMeter(w.resident),
		Publish: func(model infer.ModelID, versions []VersionStatus) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.runs[model] = versions
			w.told[model]++
		},
		Reached: func(r Revisions) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.reached = r
		},
		Loaded:  func(v backend.Version, _ time.Duration, err error) { w.note("loaded %v %v", v.Ref, err == nil) },
		Retried: func(v backend.Version, _ time.Duration, err error) { w.note("retried %v: %v", v.Ref, err) },
		Failed:  func(ref infer.ModelRef, err error) { w.note("failed %v: %v", ref, err) },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan bool)
	go func() {
		w.busy = w.loop.Run(ctx)
		close(done)
	}()
	w.stop = func() {
		cancel()
		<-done
		if left := w.files.Load(); left != 0 && !w.stuck {
			t.Errorf("%d versions' files are not closed", left)
		}
	}
	return w
}

// resident is the memory of a process in which each sample of its size is 100
// bytes above the one before.
func (w *world) resident() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.memory += 100
	return w.memory
}

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

// pass lets so much of the bubble's time go by.
func pass(d time.Duration) { <-time.NewTimer(d).C }

// events returns what happened since the last call.
func (w *world) events() []string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.log
	w.log = nil
	return list
}

func (w *world) expect(want ...string) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.events()); diff != "" {
		w.t.Error(diff)
	}
}

// assign makes the versions of an assignment, of whatever models, all that is
// assigned.
func assign(d *Desired, all Assignment) {
	parts := make(map[infer.ModelID]Assignment)
	for model := range d.assigned {
		parts[model] = all
	}
	for _, v := range all.Versions {
		parts[v.Ref.ID()] = all
	}
	for model, part := range parts {
		part.Versions = slices.DeleteFunc(slices.Clone(all.Versions), func(a Assigned) bool { return a.Ref.ID() != model })
		d.Assign(model, part)
	}
	d.SetHead(Head{Revision: all.Revision, LeaderEpoch: all.LeaderEpoch})
}

// desireGroup makes a version with the instances of a group all that is desired.
func (w *world) desireGroup(g Group) {
	r := ref("a", 1, 1)
	w.loop.Change(w.t.Context(), func(d *Desired) {
		d.SetModel(r.Name, []Version{{Ref: r, Serve: true, Config: &modelconfig.Config{Name: r.Name}}}, 1)
		d.ModelsKnown(1)
		assign(d, Assignment{Versions: []Assigned{{Ref: r, Groups: []Group{g}}}, Revision: 1})
		d.AssignmentKnown()
	})
	synctest.Wait()
}

// desire makes the versions, one instance each, those that are desired.
func (w *world) desire(revision uint64, refs ...infer.ModelRef) {
	w.loop.Change(w.t.Context(), func(d *Desired) {
		d.models = make(map[string][]Version)
		var list []Assigned
		for _, r := range refs {
			list = append(list, Assigned{Ref: r, Groups: []Group{{Name: r.Name, Count: 1}}})
			d.SetModel(r.Name, []Version{{Ref: r, Serve: true, Config: &modelconfig.Config{Name: r.Name, Backend: w.backend}}}, revision)
		}
		d.ModelsKnown(revision)
		assign(d, Assignment{Versions: list, Revision: revision})
		d.AssignmentKnown()
	})
	synctest.Wait()
}

func (w *world) states() string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []string
	for _, model := range slices.SortedFunc(maps.Keys(w.runs), infer.ModelID.Compare) {
		for _, v := range w.runs[model] {
			list = append(list, strings.TrimSpace(fmt.Sprintf("%v %v %s", v.Ref, v.State, v.Cause)))
		}
	}
	return strings.Join(list, ", ")
}

// groups are those that the only version of model a has.
func (w *world) groups() []Group {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.runs[infer.ModelID{Name: "a"}][0].Groups
}

// applied returns the revision of the models that has been reached.
func (w *world) applied() uint64 {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reached.Models
}

// world as the backend, its models and instances.

func (w *world) Load(ctx context.Context, v backend.Version) (backend.Model, error) {
	w.count(+1)
	defer w.count(-1)
	w.note("load %v", v.Ref)
	if w.load != nil {
		if err := w.load(ctx, v.Ref); err != nil {
			return nil, err
		}
	}
	return worldModel{w, v.Ref}, nil
}

func (w *world) count(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.loading += n
	w.most = max(w.most, w.loading)
}

func (w *world) Close() error { return nil }

type worldModel struct {
	w   *world
	ref infer.ModelRef
}

func (m worldModel) NewInstance(_ context.Context, spec backend.InstanceSpec) (backend.Instance, error) {
	if m.w.instance != nil {
		if err := m.w.instance(spec.Name); err != nil {
			return nil, err
		}
	} else if strings.HasSuffix(spec.Name, "_3") {
		return nil, errors.New("no room")
	}
	return worldInstance{m.w, spec.Name}, nil
}

func (m worldModel) Separate() bool { return m.w.separate }

func (m worldModel) Close() error {
	m.w.note("closed %v", m.ref)
	return nil
}

type worldInstance struct {
	w    *world
	name string
}

func (worldInstance) Credits() int { return 1 }

func (in worldInstance) Execute(b backend.Batch) {
	in.w.note("run %s", in.name)
	if in.w.run != nil {
		in.w.run(b)
	} else {
		b.Respond(0, &infer.Response{Final: true})
	}
	b.Done()
}

func (in worldInstance) Close() error {
	in.w.note("gone %s", in.name)
	return nil
}

// world as the source of files, and the files.

type sourceOf struct{ *world }

func (w sourceOf) Fetch(_ context.Context, _ source.Content, progress func(source.Progress)) (source.Files, error) {
	if w.progress != "" {
		progress(source.Progress{Text: w.progress, Reason: errs.StoreDenied})
	}
	w.files.Add(1)
	return filesOf(w), nil
}

type filesOf struct{ *world }

func (filesOf) ModelDir() string { return "/models/m" }
func (filesOf) Dir() string      { return "/models/m/1" }

func (w filesOf) Close() error {
	w.files.Add(-1)
	return nil
}

func (w filesOf) Verify(context.Context) error {
	if w.verify == nil {
		return nil
	}
	return w.verify()
}

// world as what runs instances.

type instancesOf struct{ *world }

func (w instancesOf) Open(l InstanceSpec) infer.InstanceID {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slots++
	w.away = append(w.away, l.Unready)
	w.log = append(w.log, "open "+l.Name)
	return infer.InstanceID{Slot: w.slots}
}

func (w instancesOf) Close(ctx context.Context, id infer.InstanceID) error {
	select {
	case <-w.retire:
		w.note("close %d", id.Slot)
		return nil
	case <-ctx.Done():
		return errors.New("still runs")
	}
}
