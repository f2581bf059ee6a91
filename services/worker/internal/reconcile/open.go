package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/source"
	"github.com/nereid-serving/nereid/services/worker/internal/warmup"
)

// turn returns where a load that begins now waits. It is called by the loop.
func (r *Reconciler) turn() turn {
	if r.serving {
		return r.background
	}
	return r.slots
}

// turn is where loads wait until few enough others go on.
type turn chan struct{}

func (t turn) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t turn) end() { <-t }

// attempts opens a content until it is open or has failed once more than it
// may be tried again. took is the time of the last attempt.
func (r *Reconciler) attempts(ctx context.Context, w want, tell func(source.Progress)) (l loaded, instances []made, took time.Duration, err error) {
	for failed := 0; ; failed++ {
		start := time.Now()
		l, instances, err = r.open(ctx, w, tell)
		took = time.Since(start)
		if err == nil || failed == r.config.Retries || ctx.Err() != nil || cmp.Or(w.content.Err, w.err) != nil {
			return l, instances, took, err
		}
		r.deps.Retried(backend.Version{Ref: w.ref, Config: w.content.Config}, took, err)
	}
}

// open loads a model and makes its instances, warm: all of them, or none and
// no model. A panic fails this content alone.
func (r *Reconciler) open(ctx context.Context, w want, tell func(source.Progress)) (l loaded, instances []made, err error) {
	if err := cmp.Or(w.content.Err, w.err); err != nil {
		return l, nil, err
	}
	files, err := r.deps.Source.Fetch(ctx, w.content.Files, tell)
	if err != nil {
		return l, nil, err
	}
	version := backend.Version{Ref: w.ref, Config: w.content.Config, ModelDir: files.ModelDir(), Dir: files.Dir()}
	l = loaded{version: version, files: files, bytes: w.content.Bytes}
	instances, err = r.read(ctx, &l, w.groups)
	// Only now is it known what was read. Files that changed meanwhile explain
	// a failure too.
	if changed := files.Verify(ctx); changed != nil && (err == nil || errs.Of(changed) == errs.FilesChanged) {
		if err == nil {
			r.discard(l, instances)
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

// read has the backend load the files and makes instances.
func (r *Reconciler) read(ctx context.Context, l *loaded, groups []Group) (instances []made, err error) {
	defer recovered(l.version.Ref, &err)
	load := r.deps.Meter.Begin(l.bytes)
	defer func() { l.memory = load.End() }()
	b, err := r.deps.Backend(l.version.Config.Backend)
	if err != nil {
		return nil, err
	}
	l.model, err = b.Load(ctx, l.version)
	if err != nil {
		return nil, err
	}
	instances, err = r.makeInstances(ctx, l.model, l.version, missing(groups, nil))
	if err != nil {
		r.check(l.version.Ref, l.model.Close())
	}
	return instances, err
}

// discard closes what was loaded and never opened.
func (r *Reconciler) discard(l loaded, instances []made) {
	r.closeInstances(l.version.Ref, instances)
	r.check(l.version.Ref, l.model.Close())
	r.check(l.version.Ref, l.files.Close())
}

// makeInstances makes instances and warms them up: all, or none.
func (r *Reconciler) makeInstances(ctx context.Context, model backend.Model, v backend.Version, lanes []lane) (list []made, err error) {
	if len(lanes) == 0 {
		return nil, nil
	}
	samples, err := warmup.Prepare(v)
	if err != nil {
		return nil, err
	}
	for _, l := range lanes {
		in, err := model.NewInstance(ctx, backend.InstanceSpec{Name: l.name, Kind: l.group.Kind, Device: l.group.Device})
		if err == nil {
			list = append(list, made{l, in})
			err = samples.Run(ctx, in)
		}
		if err != nil {
			r.closeInstances(v.Ref, list)
			return nil, fmt.Errorf("instance %s: %w", l.name, err)
		}
	}
	return list, nil
}

// recovered makes an error of a panic in a backend.
func recovered(ref infer.ModelRef, err *error) {
	if v := recover(); v != nil {
		*err = errs.Wrap(errs.LoadFailed, fmt.Errorf("%v\n%s", v, debug.Stack()),
			"the backend panicked while it loaded model '%s'; the log has the stack", ref.Name)
	}
}

// closeInstances closes instances that were never opened.
func (r *Reconciler) closeInstances(ref infer.ModelRef, instances []made) {
	for _, m := range instances {
		r.check(ref, m.instance.Close())
	}
}
