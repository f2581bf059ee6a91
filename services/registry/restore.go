package registry

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/internal/artifact"
)

// restore fills buckets that have lost what they held with what this replica
// remembers, before anything is read or decided: then a loss is a change of
// leaders like any other.
func (t *term) restore(ctx context.Context, now time.Time) error {
	if t.restored {
		return nil
	}
	whole, err := t.buckets.models.Whole(ctx)
	if err != nil {
		return err
	}
	models, assignments := t.memory.held()
	if whole || len(models) == 0 {
		t.restored = true
		return nil
	}
	written := 0
	for _, key := range slices.Sorted(maps.Keys(models)) {
		if _, there := t.models.entries[key]; there {
			continue
		}
		revision, err := t.buckets.models.Create(ctx, key, models[key])
		if err != nil {
			return err
		}
		t.models.put(key, models[key], revision)
		written++
	}
	if err := t.restoreAssignments(ctx, assignments); err != nil {
		return err
	}
	t.restoreFiles(ctx, models)
	// Until the workers are back nothing goes to others in their place.
	t.restored, t.patience = true, now.Add(bus.LossGrace)
	t.log.Warn("the models are written again to a store that has lost them", zap.Int("models", len(models)), zap.Int("written", written), zap.Int("assignments", len(assignments)))
	return nil
}

// restoreAssignments writes what the workers should run as it was, but for
// their heads, which say that all of it is there.
func (t *term) restoreAssignments(ctx context.Context, assignments map[string]*nereidv1.AssignmentValue) error {
	var writes []bus.Write[*nereidv1.AssignmentValue]
	for _, owned := range slices.Sorted(maps.Keys(assignments)) {
		_, key := bus.CutKey(owned)
		if _, there := t.assignments.entries[owned]; there || key == head {
			continue
		}
		t.placed[key] = true
		value := proto.CloneOf(assignments[owned])
		value.LeaderEpoch = t.epoch
		writes = append(writes, bus.Write[*nereidv1.AssignmentValue]{Key: owned, Value: value})
	}
	err := t.writeAssignments(ctx, writes)
	t.replace()
	return err
}

// restoreFiles shares the files again that came through the load API, of which
// this replica has its own.
func (t *term) restoreFiles(ctx context.Context, models map[string]*nereidv1.ModelValue) {
	if !t.cfg.ShareArtifacts {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(models)) {
		for _, url := range []string{models[key].GetUrl(), models[key].GetPrevious().GetUrl()} {
			set, shared := strings.CutPrefix(url, artifact.Scheme)
			if !shared {
				continue
			}
			dir := filepath.Join(t.cfg.Artifacts, set)
			_, err := os.Stat(dir)
			if err == nil {
				err = artifact.Share(ctx, t.buckets.objects, dir, bus.MaxArtifacts)
			}
			if err != nil {
				t.log.Error("the files that a model was loaded from are lost: workers that have it go on, others cannot load it until it is loaded again",
					append(obs.Err(errs.From(err)), zap.Stringer("model", infer.ParseModelID(key)))...)
			}
		}
	}
}
