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
func (r *Reconciler) attempts(ctx context.Context, w want) (model backend.Model, instances []made, took time.Duration, err error) {
	for failed := 0; ; failed++ {
		start := time.Now()
		model, instances, err = r.open(ctx, w)
		took = time.Since(start)
		if err == nil || failed == r.config.Retries || ctx.Err() != nil || cmp.Or(w.content.Err, w.err) != nil {
			return model, instances, took, err
		}
		r.deps.Retried(w.content.Version, took, err)
	}
}

// open loads a model and makes its instances, warm: all of them, or none and
// no model. A panic fails this content alone.
func (r *Reconciler) open(ctx context.Context, w want) (model backend.Model, instances []made, err error) {
	defer recovered(w.ref, &err)
	if err := cmp.Or(w.content.Err, w.err); err != nil {
		return nil, nil, err
	}
	b, err := r.deps.Backend(w.content.Version.Config.Backend)
	if err != nil {
		return nil, nil, err
	}
	model, err = b.Load(ctx, w.content.Version)
	if err != nil {
		return nil, nil, err
	}
	instances, err = r.makeInstances(ctx, model, w.content.Version, missing(w.groups, nil))
	if err != nil {
		r.check(w.ref, model.Close())
		return nil, nil, err
	}
	return model, instances, nil
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
