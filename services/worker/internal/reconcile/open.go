package reconcile

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/source"
	"github.com/nereid-serving/nereid/services/worker/internal/warmup"
)

// semaphore limits how many loads run at a time.
type semaphore chan struct{}

func (s semaphore) acquire(ctx context.Context) error {
	select {
	case s <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s semaphore) release() { <-s }

// limits are the semaphores that a load acquires, in this order.
type limits []semaphore

// limits returns the semaphores for a load that starts now. An engine's load waits for other engines first, so that
// it does not block the loads of other backends. Only the loop calls limits.
func (r *Reconciler) limits(c *modelconfig.Config) limits {
	if r.serving && c != nil && backends.Get(c.Backend).Engine {
		return limits{r.engineLoads, r.loads}
	}
	return limits{r.loads}
}

func (l limits) acquire(ctx context.Context) error {
	for i, s := range l {
		if err := s.acquire(ctx); err != nil {
			l[:i].release()
			return err
		}
	}
	return nil
}

func (l limits) release() {
	for _, s := range l {
		s.release()
	}
}

// attempts opens a version, retrying failures up to the configured number of times. took is the time of the last
// attempt.
func (r *Reconciler) attempts(ctx context.Context, w want, progress func(source.Progress)) (l loaded, instances []unopened, took time.Duration, err error) {
	for failed := 0; ; failed++ {
		start := time.Now()
		l, instances, err = r.open(ctx, w, progress)
		took = time.Since(start)
		if err == nil || failed == r.config.Retries || ctx.Err() != nil || w.refusal() != nil {
			return l, instances, took, err
		}
		r.deps.Retried(backend.Version{Ref: w.ref, Config: w.version.Config}, took, err)
	}
}

// open loads a model and creates its instances, warmed up: either all of them, or none and no model. A panic fails
// only this version.
func (r *Reconciler) open(ctx context.Context, w want, progress func(source.Progress)) (l loaded, instances []unopened, err error) {
	if err := w.refusal(); err != nil {
		return l, nil, err
	}
	files, err := r.deps.Source.Fetch(ctx, w.version.Files, progress)
	if err != nil {
		return l, nil, err
	}
	version := backend.Version{Ref: w.ref, Config: w.version.Config, ModelDir: files.ModelDir(), Dir: files.Dir(), Device: deviceOf(w.groups)}
	l = loaded{version: version, files: files, bytes: w.version.Bytes}
	instances, err = r.read(ctx, &l, w.groups)
	// Only now is it known what was read. Files that changed in the meantime explain a failure too.
	if changed := files.Verify(ctx); changed != nil && (err == nil || errs.Of(changed) == errs.FilesChanged) {
		if err == nil {
			r.discard(ctx, l, instances)
		} else {
			r.check(w.ref, files.Close())
		}
		return l, nil, changed
	}
	if err != nil {
		r.check(w.ref, files.Close())
	}
	return l, instances, err
}

// read makes the backend load the files, and creates the instances.
func (r *Reconciler) read(ctx context.Context, l *loaded, groups []Group) (instances []unopened, err error) {
	load := r.deps.Meter.Begin(l.bytes)
	defer func() { l.memory = load.End() }()
	if l.sequences, err = r.deps.Sequences(l.version); err != nil {
		return nil, err
	}
	if l.model, err = r.loadModel(ctx, l.version); err != nil {
		return nil, err
	}
	instances, err = r.makeInstances(ctx, l, missing(groups, nil))
	if err != nil {
		r.check(l.version.Ref, l.model.Close())
	}
	return instances, err
}

func (r *Reconciler) loadModel(ctx context.Context, v backend.Version) (m backend.Model, err error) {
	defer recovered(v.Ref, &err)
	b, err := r.deps.Backend(v.Config.Backend)
	if err != nil {
		return nil, err
	}
	v.Config = v.Config.ForBackend()
	return b.Load(ctx, v)
}

// discard closes what was loaded and never opened.
func (r *Reconciler) discard(ctx context.Context, l loaded, instances []unopened) {
	r.closeInstances(ctx, l.version.Ref, instances)
	r.check(l.version.Ref, l.model.Close())
	r.check(l.version.Ref, l.files.Close())
}

// concurrentInstances limits how many instances of one version are created at the same time.
const concurrentInstances = 32

// makeInstances creates instances and warms them up: all, or none. Separate instances are created concurrently.
func (r *Reconciler) makeInstances(ctx context.Context, of *loaded, slots []slot) ([]unopened, error) {
	if len(slots) == 0 {
		return nil, nil
	}
	samples, err := prepareSamples(of.version)
	if err != nil {
		return nil, err
	}
	list := make([]unopened, len(slots))
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(1)
	if m, ok := of.model.(backend.Separate); ok && m.Separate() {
		group.SetLimit(concurrentInstances)
	}
	for i := range slots {
		list[i].slot = slots[i]
		group.Go(func() error {
			if err := within.Err(); err != nil {
				return err
			}
			return r.makeInstance(within, of, &list[i], samples)
		})
	}
	if err = group.Wait(); err != nil {
		r.closeInstances(ctx, of.version.Ref, slices.DeleteFunc(list, func(m unopened) bool { return m.instance == nil }))
		return nil, err
	}
	return list, nil
}

func prepareSamples(v backend.Version) (s warmup.Samples, err error) {
	defer recovered(v.Ref, &err)
	return warmup.Prepare(v)
}

// makeInstance creates one instance and warms it up. After an error there may be an instance to close.
func (r *Reconciler) makeInstance(ctx context.Context, of *loaded, m *unopened, samples warmup.Samples) (err error) {
	defer recovered(of.version.Ref, &err)
	in, err := of.model.NewInstance(ctx, backend.InstanceSpec{
		Name: m.name, Kind: m.group.Kind, Device: m.group.Device, HostPolicy: m.group.HostPolicy,
	})
	if err == nil {
		m.instance = in
		if of.sequences != nil {
			m.instance = of.sequences.Instance(in)
		}
		m.warmed, err = samples.Run(ctx, m.instance, r.deps.Calls)
	}
	if err != nil {
		return fmt.Errorf("instance %s: %w", m.name, err)
	}
	return nil
}

// recovered turns a panic in a backend into an error.
func recovered(ref infer.ModelRef, err *error) {
	if v := recover(); v != nil {
		*err = errs.Wrap(errs.LoadFailed, fmt.Errorf("%v\n%s", v, debug.Stack()),
			"the backend panicked while it loaded model '%s'; the log has the stack", ref.Name)
	}
}

// closeInstances closes instances that were never opened. If ctx is done, it allows little time for that.
func (r *Reconciler) closeInstances(ctx context.Context, ref infer.ModelRef, instances []unopened) {
	late, free := backend.WithGrace(ctx)
	defer free()
	for _, m := range instances {
		r.check(ref, backend.Close(late, m.instance))
	}
}
