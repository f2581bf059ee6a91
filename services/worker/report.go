package worker

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// reportPause is the minimum time between two reports, per model in the first one: changes that a model makes in the
// meantime are published together.
const reportPause = 20 * time.Microsecond

// retryPause is how long to wait before retrying a report that failed.
const retryPause = 100 * time.Millisecond

// reporter publishes what the worker runs: first each model's part in the bucket instances and then, in the lease's
// value, which state has been reached.
type reporter struct {
	worker  *Worker
	lease   *registration
	mailbox *mailbox
	bucket  *bus.Bucket[[]byte]
	// published is, by key, what the bucket should contain for this worker.
	published map[string][]byte
}

// raw is a codec that leaves bytes unchanged: the reporter only compares them.
func raw() bus.Codec[[]byte] {
	return bus.Codec[[]byte]{
		Encode: func(b []byte) ([]byte, error) { return b, nil },
		Decode: func(b []byte) ([]byte, error) { return bytes.Clone(b), nil },
	}
}

// report publishes what the mailbox receives until ctx is done. It repairs the bucket: it deletes keys of an earlier
// incarnation, and rewrites keys that the registry deleted when it believed that the worker was lost.
func (w *Worker) report(ctx context.Context, lease *registration, b *mailbox) error {
	bucket, err := bus.NewBucket(w.deps.Bus, bus.Instances, raw())
	if err != nil {
		return err
	}
	stored, err := bucket.WatchOwner(ctx, w.config.ID)
	if err != nil {
		return err
	}
	r := &reporter{worker: w, lease: lease, mailbox: b, bucket: bucket, published: make(map[string][]byte)}
	present := make(map[string]bool) // the keys that the bucket contains
	for {
		select {
		case <-ctx.Done():
			r.leave(context.WithoutCancel(ctx))
			return nil
		case e, ok := <-stored:
			if !ok { // the bus is closing
				return nil
			}
			r.compare(ctx, e, present)
			continue
		case <-b.changed:
		}
		if n := r.publish(ctx); n >= 0 {
			lifecycle.Pause(ctx, reportPause*time.Duration(n))
		} else {
			lifecycle.Pause(ctx, retryPause)
		}
	}
}

// publish writes the models that have changed and returns how many; -1 if a write failed.
func (r *reporter) publish(ctx context.Context) int {
	changed, reached := r.mailbox.receive()
	keys := make([]infer.ModelID, 0, len(changed))
	var writes []bus.Write[[]byte]
	for _, model := range slices.SortedFunc(maps.Keys(changed), infer.ModelID.Compare) {
		w := bus.Write[[]byte]{Key: bus.OwnedKey(r.worker.config.ID, model.Key()), Any: true}
		if w.Delete = len(changed[model]) == 0; !w.Delete {
			var err error
			if w.Value, err = nereidv1.MarshalValue(r.worker.instances(r.lease.Epoch(), changed[model])); err != nil {
				r.warn(ctx, err)
				continue
			}
		}
		keys, writes = append(keys, model), append(writes, w)
	}
	failed := r.write(ctx, writes, func(i int) { delete(changed, keys[i]) })
	if failed != nil {
		r.mailbox.putBack(changed)
		r.warn(ctx, failed)
		return -1
	}
	if err := r.lease.Set(ctx, r.worker.value(r.lease.Epoch(), reached)); err != nil {
		r.warn(ctx, err)
	}
	return len(keys)
}

// write makes changes, records those that succeed and returns an error of the others.
func (r *reporter) write(ctx context.Context, writes []bus.Write[[]byte], done func(i int)) (failed error) {
	for i, written := range r.bucket.Batch(ctx, writes) {
		if written.Err != nil {
			failed = written.Err
			continue
		}
		if r.published[writes[i].Key] = writes[i].Value; writes[i].Delete {
			delete(r.published, writes[i].Key)
		}
		done(i)
	}
	return failed
}

// compare compares an event of the bucket with what was published. The reporter's own writes come back, some of them
// after they were replaced.
func (r *reporter) compare(ctx context.Context, e bus.Event[[]byte], present map[string]bool) {
	switch e.Kind {
	case bus.EventPut:
		present[e.Key] = true
		if r.published[e.Key] == nil && r.earlier(e.Value) {
			r.set(ctx, bus.Write[[]byte]{Key: e.Key, Delete: true, Replaces: e.Revision})
		}
	case bus.EventDelete:
		if delete(present, e.Key); r.published[e.Key] != nil {
			r.set(ctx, bus.Write[[]byte]{Key: e.Key, Value: r.published[e.Key], Any: true})
		}
	case bus.EventLost:
		clear(present) // everything is rewritten once it is known what is there
	case bus.EventCaughtUp:
		for key, value := range r.published {
			if !present[key] {
				r.set(ctx, bus.Write[[]byte]{Key: key, Value: value, Any: true})
			}
		}
	}
}

// earlier reports whether an earlier incarnation of the worker wrote a value.
func (r *reporter) earlier(data []byte) bool {
	v := new(nereidv1.InstancesValue)
	return nereidv1.UnmarshalValue(data, v) != nil || v.GetEpoch() < r.lease.Epoch()
}

func (r *reporter) set(ctx context.Context, w bus.Write[[]byte]) {
	if err := r.write(ctx, []bus.Write[[]byte]{w}, func(int) {}); err != nil {
		r.warn(ctx, err)
	}
}

// leaveTimeout limits the last writes. Without the lease, anything left over is void.
const leaveTimeout = 2 * time.Second

// leave deletes everything that is still published when the worker ends.
func (r *reporter) leave(ctx context.Context) {
	writing, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	var writes []bus.Write[[]byte]
	for _, key := range slices.Sorted(maps.Keys(r.published)) {
		writes = append(writes, bus.Write[[]byte]{Key: key, Delete: true})
	}
	if err := r.write(writing, writes, func(int) {}); err != nil {
		r.warn(ctx, err)
	}
}

// warn logs a write that failed, unless ctx is done: then the worker is ending, and leave makes the last writes.
func (r *reporter) warn(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	r.worker.deps.Log.Warn("the worker's state is not published yet", append(obs.Err(err), zap.String("worker_id", r.worker.config.ID))...)
}
