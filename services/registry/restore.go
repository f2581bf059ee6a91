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
func (l *leadership) restore(ctx context.Context, now time.Time) error {
	if l.restored {
		return nil
	}
	synced, err := l.buckets.models.Synced(ctx)
	if err != nil {
		return err
	}
	models, assignments := l.backup.values()
	if synced || len(models) == 0 {
		l.restored = true
		return nil
	}
	written := 0
	for _, key := range slices.Sorted(maps.Keys(models)) {
		if _, there := l.models.entries[key]; there {
			continue
		}
		revision, err := l.buckets.models.Create(ctx, key, models[key])
		if err != nil {
			return err
		}
		l.models.put(key, models[key], revision)
		written++
	}
	if err := l.restoreAssignments(ctx, assignments); err != nil {
		return err
	}
	l.restoreFiles(ctx, models)
	// Until the workers are back nothing goes to others in their place.
	l.restored, l.workersDeadline = true, now.Add(bus.LossGrace)
	l.log.Warn("the models are written again to a store that has lost them", zap.Int("models", len(models)), zap.Int("written", written), zap.Int("assignments", len(assignments)))
	return nil
}

// restoreAssignments writes what the workers should run as it was, but for
// their heads, which say that all of it is there.
func (l *leadership) restoreAssignments(ctx context.Context, assignments map[string]*nereidv1.AssignmentValue) error {
	var writes []bus.Write[*nereidv1.AssignmentValue]
	for _, owned := range slices.Sorted(maps.Keys(assignments)) {
		_, key := bus.CutKey(owned)
		if _, there := l.assignments.entries[owned]; there || key == fence {
			continue
		}
		l.restoredModels[key] = true
		value := proto.CloneOf(assignments[owned])
		value.LeaderEpoch = l.epoch
		writes = append(writes, bus.Write[*nereidv1.AssignmentValue]{Key: owned, Value: value})
	}
	err := l.writeAssignments(ctx, writes)
	l.placeAll()
	return err
}

// restoreFiles shares the files again that came through the load API, of which
// this replica has its own.
func (l *leadership) restoreFiles(ctx context.Context, models map[string]*nereidv1.ModelValue) {
	if !l.cfg.ShareArtifacts {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(models)) {
		for _, url := range []string{models[key].GetUrl(), models[key].GetPrevious().GetUrl()} {
			set, shared := strings.CutPrefix(url, artifact.Scheme)
			if !shared {
				continue
			}
			dir := filepath.Join(l.cfg.Artifacts, set)
			_, err := os.Stat(dir)
			if err == nil {
				err = artifact.Share(ctx, l.buckets.objects, dir, bus.MaxArtifacts)
			}
			if err != nil {
				l.log.Error("the files that a model was loaded from are lost: workers that have it go on, others cannot load it until it is loaded again",
					append(obs.Err(errs.From(err)), zap.Stringer("model", infer.ParseModelID(key)))...)
			}
		}
	}
}
