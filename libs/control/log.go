package control

import (
	"context"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// FollowLog applies the bucket's settings over those with which the log was opened, until ctx
// is done.
func FollowLog(ctx context.Context, store *bus.Bus, log *obs.Log) error {
	bucket, err := bus.NewBucket(store, bus.Settings, bus.Values[*nereidv1.SettingValue]())
	if err != nil {
		return err
	}
	events, err := bucket.WatchKey(ctx, bus.LogSetting)
	if err != nil {
		return err
	}
	for e := range events {
		err := e.Err
		if err == nil && (e.Kind == bus.EventPut || e.Kind == bus.EventDelete) {
			err = log.Apply(obs.LogSettings{Values: e.Value.GetLog().GetSettings(), Revision: e.Revision})
		}
		if err != nil {
			log.Error("the log's settings cannot be changed: those before stay in force", obs.Err(err)...)
		}
	}
	return nil
}
