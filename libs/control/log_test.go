package control_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// The log of each process has what the bucket says, until it says nothing any more.
func TestTheLogFollowsTheBucket(t *testing.T) {
	store, err := bus.Open(t.Context(), bus.Config{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := store.EnsureBuckets(t.Context()); err != nil {
		t.Fatal(err)
	}
	settings, err := bus.NewBucket(store, bus.Settings, bus.Values[*nereidv1.SettingValue]())
	if err != nil {
		t.Fatal(err)
	}
	log, err := obs.OpenLog(obs.LogConfig{Verbose: 1, Error: true, Format: "json", File: filepath.Join(t.TempDir(), "log")})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	opened := log.Config()
	ctx, stop := context.WithCancel(t.Context())
	followed := make(chan error, 1)
	go func() { followed <- control.FollowLog(ctx, store, log) }()
	put := func(values map[string]string) {
		t.Helper()
		value := &nereidv1.SettingValue{Schema: nereidv1.Schema, Setting: &nereidv1.SettingValue_Log{Log: &nereidv1.LogSettings{Settings: values}}}
		if _, err := settings.Put(t.Context(), bus.LogSetting, value); err != nil {
			t.Fatal(err)
		}
	}
	await := func(want obs.LogConfig) {
		t.Helper()
		for log.Config() != want { // the test's own timeout ends it
			select {
			case err := <-followed:
				t.Fatalf("%+v is in force, want %+v; following ended: %v", log.Config(), want, err)
			default:
			}
		}
	}
	changed := opened
	changed.Verbose, changed.Format = 3, "ISO8601"
	put(map[string]string{obs.LogVerbose: "3", obs.LogFormat: "ISO8601"})
	await(changed)
	put(map[string]string{obs.LogVerbose: "many"}) // is refused
	changed = opened
	changed.Info = true
	put(map[string]string{obs.LogInfo: "true"})
	await(changed)
	if err := settings.Delete(t.Context(), bus.LogSetting, 0); err != nil {
		t.Fatal(err)
	}
	await(opened)
	stop()
	if err := <-followed; err != nil {
		t.Error(err)
	}
}
