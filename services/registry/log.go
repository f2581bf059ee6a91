package registry

import (
	"context"
	"errors"
	"maps"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// SetLog changes settings of the logs of all services, by their names, and returns all
// that differ from the services' flags. Any replica may do so: two that write at once
// lose nothing, since each writes over what it has read. Errors have the reasons
// invalid_parameter and state_unavailable.
func (r *Registry) SetLog(ctx context.Context, changes map[string]string) (obs.LogSettings, error) {
	if _, err := (obs.LogConfig{}).With(changes); err != nil {
		return obs.LogSettings{}, err
	}
	bucket, err := bus.NewBucket(r.bus, bus.Settings, bus.Values[*nereidv1.SettingValue]())
	if err != nil {
		return obs.LogSettings{}, err
	}
	for {
		before, err := bucket.Get(ctx, bus.LogSetting)
		if err != nil && !errors.Is(err, bus.ErrNotFound) {
			return obs.LogSettings{}, err
		}
		all := map[string]string{}
		maps.Copy(all, before.Value.GetLog().GetSettings())
		for _, name := range []string{obs.LogInfo, obs.LogWarning, obs.LogError, obs.LogVerbose, obs.LogFormat} {
			if value, given := changes[name]; given {
				all[name] = value
			}
		}
		value := &nereidv1.SettingValue{Schema: nereidv1.Schema, Setting: &nereidv1.SettingValue_Log{Log: &nereidv1.LogSettings{Settings: all}}}
		revision := before.Revision
		if revision == 0 {
			revision, err = bucket.Create(ctx, bus.LogSetting, value)
		} else {
			revision, err = bucket.Update(ctx, bus.LogSetting, value, revision)
		}
		if !errors.Is(err, bus.ErrConflict) {
			return obs.LogSettings{Values: all, Revision: revision}, err
		}
	}
}
