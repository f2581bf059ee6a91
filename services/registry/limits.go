package registry

import (
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/resources"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/place"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
)

// rateLimit is a pool's rate limiter, as its scheduler tells it.
type rateLimit struct {
	on     bool
	counts resources.Counts
}

// leaderChanged takes the rate limiter of a pool's scheduler. It stays known when
// the scheduler is gone: the next one will have the same.
func (l *leadership) leaderChanged(e bus.Event[*nereidv1.LeaderValue], open bool) (bool, error) {
	news, err := receive(l.leaders, e, open, e.Value.GetSchema())
	pool, isPool := strings.CutPrefix(e.Key, control.PoolRole(""))
	if !news || e.Kind == bus.EventCaughtUp || e.Kind == bus.EventDelete || !isPool {
		return news && e.Kind == bus.EventCaughtUp, err
	}
	before, known := l.rateLimits[pool]
	told := rateLimit{on: e.Value.GetRateLimit() != nil}
	if told.counts, err = resources.Parse(e.Value.GetRateLimit().GetResources()); err != nil {
		l.log.Error("the rate limiter of a pool's scheduler cannot be read", append(obs.Err(err), zap.String("pool", pool))...)
		return false, nil
	}
	if known && before.on == told.on && slices.Equal(before.counts, told.counts) {
		return false, nil // its lease was renewed
	}
	l.rateLimits[pool] = told
	l.placeAll()
	return true, nil
}

// awaitsRateLimit reports whether a model needs resources and the scheduler of its
// pool has not said how much there is.
func (l *leadership) awaitsRateLimit(key string) bool {
	return publish.HasResources(l.models.entries[key].Value, l.configured, func(pool string) bool {
		_, known := l.rateLimits[pool]
		return !known
	})
}

// refuseConflicts marks the versions that cannot be loaded beside those of other
// models, and has their models placed again until they can.
func (l *leadership) refuseConflicts(versions []place.Version) {
	limited := func(pool string) bool { return l.rateLimits[pool].on }
	clear(l.conflicting)
	if !slices.ContainsFunc(versions, func(v place.Version) bool { return limited(v.Pool) }) {
		return
	}
	all := make(publish.Models, len(l.models.entries))
	for key, entry := range l.models.entries {
		all[key] = publish.Model{Value: entry.Value}
	}
	causes := publish.Conflicts(all, l.configured, limited, l.readyAnywhere)
	for i := range versions {
		versions[i].Refused = causes[versions[i].Model]
	}
	for ref := range causes {
		l.conflicting[ref.ID().Key()] = true
	}
}

// readyAnywhere reports whether a live worker has a loaded version ready.
func (l *leadership) readyAnywhere(ref infer.ModelRef) bool {
	for worker := range l.assignments.byName[ref.ID().Key()] {
		if l.readyAt(worker, ref) {
			return true
		}
	}
	return false
}
