package registry_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/testkit/objectstore"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry"
)

// TestLeaderThatCannotListRemovesNothing has a standby begin to lead that has
// seen the store before a model came, and cannot list it now.
func TestLeaderThatCannotListRemovesNothing(t *testing.T) {
	objects := objectstore.Start(t)
	upload := func(model string) {
		objects.Put("repo/"+model+"/config.pbtxt", echoConfig)
		objects.Put("repo/"+model+"/1/f", "one")
	}
	upload("old")
	s := newStore(t)
	start := func(holder string) *replica {
		return s.startWith(func(c *registry.Config) {
			c.Holder, c.Repositories, c.Control = holder, []string{objects.URL() + "/repo"}, registry.ControlPoll
			c.Poll, c.FileQuietPeriod, c.ObjectQuietPeriod = registry.Seconds(20*time.Millisecond), 0, 0
		})
	}
	first := start("first")
	s.announcedBy("first")
	start("second").logs.await(t, "waiting to lead")
	upload("new")
	s.models.await(t, "the new model", func(all map[string]*nereidv1.ModelValue) bool { return len(all["new"].GetVersions()) == 1 })

	objects.Fail(func(w http.ResponseWriter, _ *http.Request) bool {
		objectstore.Refuse(w, http.StatusForbidden, "AccessDenied")
		return true
	})
	first.stop()
	s.announcedBy("second")
	all, _ := s.models.all(t)
	for _, model := range []string{"old", "new"} {
		if v := all[model]; len(v.GetVersions()) != 1 || v.GetProblem() != "" {
			t.Errorf("model %s: %v", model, v)
		}
	}
	// What is gone from a store that can be listed goes.
	objects.Delete("repo/old/config.pbtxt")
	objects.Delete("repo/old/1/f")
	objects.Fail(nil)
	s.models.await(t, "the old model to go", func(all map[string]*nereidv1.ModelValue) bool {
		return all["old"].GetRemoved() && !all["new"].GetRemoved()
	})
}

func TestStartWaitsForAStoreThatDoesNotAnswer(t *testing.T) {
	objects := objectstore.Start(t)
	objects.Put("repo/m/config.pbtxt", echoConfig)
	objects.Put("repo/m/1/f", "one")
	objects.Fail(func(w http.ResponseWriter, _ *http.Request) bool {
		objectstore.Refuse(w, http.StatusServiceUnavailable, "SlowDown")
		return true
	})
	s := newStore(t)
	r := s.startWith(func(c *registry.Config) { c.Repositories, c.ObjectQuietPeriod = []string{objects.URL() + "/repo"}, 0 })
	r.logs.await(t, "waiting for a model repository")
	objects.Fail(nil)
	s.models.await(t, "the model", func(all map[string]*nereidv1.ModelValue) bool { return len(all["m"].GetVersions()) == 1 })
}
