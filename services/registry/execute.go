package registry

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core"
	"github.com/nereid-serving/nereid/services/registry/internal/artifact"
	"github.com/nereid-serving/nereid/services/registry/internal/repo"
)

// execute executes commands in their order, up to the first that fails.
func (l *leadership) execute(ctx context.Context, commands []core.Command) core.Done {
	var done core.Done
	for _, command := range commands {
		r := l.executeOne(ctx, command)
		done.Results = append(done.Results, r)
		for _, err := range r.Errs {
			if err != nil {
				return done
			}
		}
	}
	return done
}

func (l *leadership) executeOne(ctx context.Context, command core.Command) core.Result {
	switch command := command.(type) {
	case core.Write:
		return l.write(ctx, core.Batch{command})
	case core.Batch:
		return l.write(ctx, command)
	case core.MarkSynced:
		if command.Bucket == core.Assignments {
			return resultOf(0, l.buckets.assignments.MarkSynced(ctx))
		}
		return resultOf(0, l.buckets.models.MarkSynced(ctx))
	case core.Announce:
		return resultOf(0, l.announce(ctx, command.Revision))
	case core.Touch:
		return resultOf(l.touch(ctx))
	}
	panic("unknown command")
}

// write executes writes to one bucket.
func (l *leadership) write(ctx context.Context, writes core.Batch) core.Result {
	switch writes[0].Bucket {
	case core.Models:
		r := writeTo(ctx, l.buckets.models, writes)
		for i, w := range writes {
			if value, is := w.Value.(*nereidv1.ModelValue); is && r.Errs[i] == nil {
				l.backup.setModel(w.Key.Name, value) // the watch may never bring it
			}
		}
		return r
	case core.Assignments:
		return writeTo(ctx, l.buckets.assignments, writes)
	case core.Instances:
		return writeTo(ctx, l.buckets.instances, writes)
	case core.Pools:
		return writeTo(ctx, l.buckets.pools, writes)
	}
	panic("the bucket is another's")
}

func writeTo[T proto.Message](ctx context.Context, b *bus.Bucket[T], writes core.Batch) (r core.Result) {
	batch := make([]bus.Write[T], len(writes))
	for i, w := range writes {
		batch[i] = bus.Write[T]{Key: w.Key.Name, Replaces: w.Replaces, Delete: w.Value == nil}
		if w.Key.Owner != "" {
			batch[i].Key = bus.OwnedKey(w.Key.Owner, w.Key.Name)
		}
		if w.Value != nil {
			batch[i].Value = w.Value.(T)
		}
	}
	for _, written := range b.Batch(ctx, batch) {
		r.Revisions = append(r.Revisions, written.Revision)
		r.Errs = append(r.Errs, written.Err)
		r.Conflict = r.Conflict || errors.Is(written.Err, bus.ErrConflict)
	}
	return r
}

func resultOf(revision uint64, err error) core.Result {
	return core.Result{Revisions: []uint64{revision}, Errs: []error{err}, Conflict: errors.Is(err, bus.ErrConflict)}
}

// touch gives the bucket models a revision, by a value that is there for a moment under the
// one name that no model has. Without it an empty repository would look like one that was not
// read yet.
func (l *leadership) touch(ctx context.Context) (uint64, error) {
	const noModel = ""
	revision, err := l.buckets.models.Create(ctx, noModel, &nereidv1.ModelValue{Schema: nereidv1.Schema, Problem: "the repository is empty"})
	if err != nil {
		return 0, err
	}
	return revision, l.buckets.models.Delete(ctx, noModel, revision)
}

// sweepTime bounds the removal of shared files, for which the loop waits.
const sweepTime = 10 * time.Second

// sweep removes files that came with loads and that no model is made of any more.
func (l *leadership) sweep(ctx context.Context, used map[string]bool) {
	// Files that are shared are kept here too: the store may lose them.
	err := artifact.Sweep(l.cfg.Artifacts, func(dir string) bool {
		return used[repo.Local{}.URL(dir)] || l.cfg.ShareArtifacts && used[artifact.SharedURL(dir)]
	})
	if l.cfg.ShareArtifacts {
		ctx, cancel := context.WithTimeout(ctx, sweepTime)
		defer cancel()
		err = errors.Join(err, artifact.SweepShared(ctx, l.buckets.objects, func(url string) bool { return used[url] }))
	}
	if err != nil {
		l.log.Warn("files of models that are gone are not removed", obs.Err(err)...)
	}
}
