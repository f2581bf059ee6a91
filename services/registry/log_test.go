package registry_test

import (
	"strconv"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/registry"
)

// Replicas that change settings at once lose none of them.
func TestChangesOfTheLogAddUp(t *testing.T) {
	store, err := bus.Open(t.Context(), bus.Config{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := store.EnsureBuckets(t.Context()); err != nil {
		t.Fatal(err)
	}
	config := registry.Default()
	config.Repositories = []string{t.TempDir()}
	var replicas [2]*registry.Registry
	for i := range replicas {
		if replicas[i], err = registry.New(config, registry.Deps{Bus: store}); err != nil {
			t.Fatal(err)
		}
	}
	var all sync.WaitGroup
	for i, changes := range []map[string]string{{"log_info": "false"}, {"log_warning": "true"}, {"log_error": "false"}, {"log_format": "ISO8601"}} {
		all.Go(func() {
			if _, err := replicas[i%2].SetLog(t.Context(), changes); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	var before uint64
	for i, replica := range replicas {
		level := strconv.Itoa(i)
		got, err := replica.SetLog(t.Context(), map[string]string{"log_verbose_level": level, "log_of_a_later_release": "x"})
		want := map[string]string{"log_info": "false", "log_warning": "true", "log_error": "false", "log_format": "ISO8601", "log_verbose_level": level}
		if d := cmp.Diff(want, got.Values); d != "" || err != nil || got.Revision <= before {
			t.Errorf("revision %d after %d, %v (-want +got):\n%s", got.Revision, before, err, d)
		}
		before = got.Revision
	}
	if _, err := replicas[0].SetLog(t.Context(), map[string]string{"log_format": "xml"}); errs.Of(err) != errs.InvalidParameter {
		t.Errorf("an unknown format: %v", err)
	}
}
