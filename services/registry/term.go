package registry

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/internal/place"
	"github.com/nereid-serving/nereid/services/registry/internal/publish"
	"github.com/nereid-serving/nereid/services/registry/internal/snapshot"
)

// term is one time as the leader. All fields are owned by run's goroutine.
type term struct {
	buckets *buckets
	log     *zap.Logger
	grace   time.Duration
	retry   time.Duration
	epoch   uint64
	// announce tells the world the revision from which on the bucket models
	// is whole.
	announce func(ctx context.Context, revision uint64) error

	snap        *snapshot.Snapshot
	models      *mirror[*nereidv1.ModelValue]
	workers     *mirror[*nereidv1.WorkerValue]
	assignments *mirror[*nereidv1.AssignmentValue]

	published bool // the bucket models holds the snapshot
	announced bool
	vanished  map[string]time.Time // assigned workers that are gone, and since when
}

func newTerm(b *buckets, cfg Config, log *zap.Logger, snap *snapshot.Snapshot, epoch uint64) *term {
	return &term{
		buckets:     b,
		log:         log,
		grace:       cfg.WorkerGrace,
		retry:       cfg.Retry,
		epoch:       epoch,
		snap:        snap,
		models:      newMirror[*nereidv1.ModelValue](),
		workers:     newMirror[*nereidv1.WorkerValue](),
		assignments: newMirror[*nereidv1.AssignmentValue](),
		vanished:    make(map[string]time.Time),
	}
}

// run keeps the buckets in step until ctx ends or a value of a newer release
// is met, which it must not replace.
func (t *term) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	models := t.buckets.models.Watch(ctx)
	workers := t.buckets.workers.Watch(ctx)
	assignments := t.buckets.assignments.Watch(ctx)
	wake := time.NewTimer(t.grace)
	defer wake.Stop()
	for {
		news := true
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, ok := <-models:
			news, err = take(t.models, e, ok, e.Value.GetSchema())
		case e, ok := <-workers:
			news, err = t.takeWorker(e, ok)
		case e, ok := <-assignments:
			news, err = take(t.assignments, e, ok, e.Value.GetSchema())
		case <-wake.C:
		}
		if err != nil {
			return err
		}
		if news && t.ready() {
			wake.Reset(t.step(ctx, time.Now()))
		}
	}
}

// ready reports whether all three buckets are known.
func (t *term) ready() bool {
	return t.models.caughtUp && t.workers.caughtUp && t.assignments.caughtUp
}

// errWatchEnded says that the bus is closing.
var errWatchEnded = errors.New("the watch ended")

func take[T any](m *mirror[T], e bus.Event[T], open bool, schema uint32) (bool, error) {
	if !open {
		return false, errWatchEnded
	}
	if schema > nereidv1.Schema {
		return false, errs.New(errs.StateUnavailable,
			"the value of %q has schema %d, newer than %d: a newer release leads; upgrade this one", e.Key, schema, nereidv1.Schema)
	}
	return m.apply(e), nil
}

// takeWorker drops what a worker says of its instances: only the worker and
// its device matter here, and renewals are frequent.
func (t *term) takeWorker(e bus.Event[*nereidv1.WorkerValue], open bool) (bool, error) {
	before, known := t.workers.entries[e.Key]
	news, err := take(t.workers, e, open, e.Value.GetSchema())
	if e.Kind == bus.EventPut && known && sameDevice(before.Value, e.Value) {
		return false, err
	}
	return news, err
}

func sameDevice(a, b *nereidv1.WorkerValue) bool {
	return a.GetDevice().GetKind() == b.GetDevice().GetKind() && a.GetDevice().GetNumber() == b.GetDevice().GetNumber()
}

// step does what is to be done now and returns when to look again at the
// latest. What fails is tried again then; each part waits for the one before
// it, so that an assignment never names a model that is not there.
func (t *term) step(ctx context.Context, now time.Time) time.Duration {
	for _, part := range []func(context.Context) error{t.publish, t.tell, t.place} {
		if err := part(ctx); err != nil {
			t.failed(ctx, err)
			return t.retry
		}
	}
	next, err := t.forget(ctx, now)
	if err != nil {
		t.failed(ctx, err)
		return t.retry
	}
	return next
}

// failed logs an error that is not the term's end. A conflict is none: the
// watch brings what the other writer wrote, and the step is done again.
func (t *term) failed(ctx context.Context, err error) {
	if ctx.Err() == nil && !errors.Is(err, bus.ErrConflict) {
		t.log.Warn("state not written", obs.Err(err)...)
	}
}

// publish brings the bucket models to hold the snapshot, once.
func (t *term) publish(ctx context.Context) error {
	if t.published {
		return nil
	}
	writes := publish.DiffModels(t.snap, t.stored(), t.models.revision)
	if err := t.writeModels(ctx, writes); err != nil {
		return err
	}
	if t.models.revision == 0 {
		if err := t.firstRevision(ctx); err != nil {
			return err
		}
	}
	t.published = true
	t.log.Info("models published", zap.Int("models", len(t.snap.Models)), zap.Int("written", len(writes)))
	return nil
}

// firstRevision gives an empty bucket a revision, by a value that is there for
// a moment under the one name that no model has. Without it nobody could tell
// an empty repository from one that was not read yet.
func (t *term) firstRevision(ctx context.Context) error {
	const noModel = ""
	revision, err := t.buckets.models.Create(ctx, noModel, &nereidv1.ModelValue{Schema: nereidv1.Schema, Problem: "the repository is empty"})
	if err != nil {
		return err
	}
	if err := t.buckets.models.Delete(ctx, noModel, revision); err != nil {
		return err
	}
	t.models.drop(noModel, revision)
	t.models.revision = max(t.models.revision, revision)
	return nil
}

// tell announces the whole scan, once.
func (t *term) tell(ctx context.Context) error {
	if t.announced {
		return nil
	}
	if err := t.announce(ctx, t.models.revision); err != nil {
		return err
	}
	t.announced = true
	t.log.Info("scan announced", zap.Uint64("revision", t.models.revision))
	return nil
}

// place brings the assignments of the live workers up to date, and the causes
// of versions that fit none of them. While there is no worker the causes stay:
// they would only come and go with a worker that restarts.
func (t *term) place(ctx context.Context) error {
	versions, causes := publish.Versions(t.stored())
	live := publish.Workers(t.live())
	if len(live) == 0 {
		return nil
	}
	placement := place.Assign(versions, live)
	for ref, cause := range placement.Unplaced {
		causes[ref] = cause
	}
	marks := publish.MarkUnplaced(t.stored(), causes)
	if err := t.writeModels(ctx, marks); err != nil {
		return err
	}
	t.logMarks(marks, causes)
	for _, w := range publish.DiffAssignments(placement, t.assigned(), t.models.revision, t.epoch) {
		revision, err := write(ctx, t.buckets.assignments, w.Worker, w.Value, w.Replaces)
		if err != nil {
			return err
		}
		t.assignments.put(w.Worker, w.Value, revision)
		t.log.Info("worker assigned", zap.String("worker_id", w.Worker), zap.Int("versions", len(w.Value.GetVersions())), zap.Uint64("revision", revision))
	}
	return nil
}

func (t *term) logMarks(marks []publish.ModelWrite, causes map[infer.ModelRef]string) {
	for _, mark := range marks {
		for ref, cause := range causes {
			if ref.Name == mark.Name {
				t.log.Warn("model version fits no worker", append(obs.Model(ref), zap.String("cause", cause))...)
			}
		}
	}
}
