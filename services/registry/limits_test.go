package registry_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry"
)

// scheduler has the pool default held by a scheduler with that rate limiter, nil for
// none; leave ends it.
func (s *store) scheduler(r *nereidv1.RateLimit) (leave func()) {
	s.t.Helper()
	lease, err := s.leaders.Acquire(testContext(s.t), bus.Claim[*nereidv1.LeaderValue]{
		Key: "pool.default",
		Value: func(epoch uint64) *nereidv1.LeaderValue {
			return &nereidv1.LeaderValue{Schema: nereidv1.Schema, Holder: "s", Epoch: epoch, RateLimit: r}
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return func() {
		if err := lease.Release(testContext(s.t)); err != nil {
			s.t.Errorf("release the pool: %v", err)
		}
	}
}

// needing is a configuration whose executions need so much of a resource.
func needing(resource string, count int, global bool) string {
	return echoConfig + fmt.Sprintf("instance_group { rate_limiter { resources { name: %q count: %d global: %v } } }", resource, count, global)
}

// problem waits until a model's version 1 has a problem that says want, or none if
// want is empty, and returns it.
func (s *store) problem(model, want string) (cause string) {
	s.t.Helper()
	s.models.await(s.t, fmt.Sprintf("the cause %q of model %s", want, model), func(all map[string]*nereidv1.ModelValue) bool {
		for _, v := range all[model].GetVersions() {
			cause = v.GetProblem()
			return strings.Contains(cause, want) && (want != "" || cause == "")
		}
		return false
	})
	return cause
}

func TestWhatCanNeverRunIsRefusedAtLoad(t *testing.T) {
	s := newStore(t)
	defer s.worker("w", cpu)()
	defer s.scheduler(&nereidv1.RateLimit{Resources: []string{"r:2"}})()
	r := s.startWith(func(c *registry.Config) {
		c.Repositories = []string{repository(t, map[string]string{
			"fits/config.pbtxt": needing("R", 2, false), "fits/1/f": "",
			"large/config.pbtxt": needing("r", 3, false), "large/1/f": "",
			"other/config.pbtxt": needing("q", 1, false), "other/1/f": "",
			"plain/config.pbtxt": echoConfig, "plain/1/f": "",
		})}
		c.Control = registry.ControlExplicit
		c.LoadModels = []string{"fits", "other", "plain"}
	})
	s.assigned("w", "fits", "plain")
	cause := s.problem("other", "Resource count for \"q\" is limited to 0 which will prevent scheduling of one or more model instances, the minimum required count is 1")
	if want := "--rate-limit-resource=q:1"; !strings.Contains(cause, want) {
		t.Errorf("the cause %q does not say %q", cause, want)
	}
	err := r.Load(testContext(t), "large", "", nil)
	if want := "Resource count for \"r\" is limited to 2 which"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the load of large: %v, want %q", err, want)
	}
	s.assigned("w", "fits", "plain")
}

// A resource is global for all models of a pool, or each device's for all.
func TestAResourceOfTwoKindsIsRefused(t *testing.T) {
	s := newStore(t)
	defer s.worker("w", cpu)()
	defer s.scheduler(&nereidv1.RateLimit{})()
	r := s.startWith(func(c *registry.Config) {
		c.Repositories = []string{repository(t, map[string]string{
			"a/config.pbtxt": needing("r", 1, false), "a/1/f": "",
			"b/config.pbtxt": needing("r", 1, true), "b/1/f": "",
		})}
		c.Control = registry.ControlExplicit
		c.LoadModels = []string{"a"}
	})
	s.assigned("w", "a")
	go func() { _ = r.Load(t.Context(), "b", "", nil) }() // ends with the test: no worker loads here
	cause := s.problem("b", "Resource \"r\" is present as both global and device-specific resource in the model configuration")
	for _, want := range []string{"global in that of model 'b'", "without global in that of model 'a'"} {
		if !strings.Contains(cause, want) {
			t.Errorf("the cause %q does not say %q", cause, want)
		}
	}
	go func() { _ = r.Unload(t.Context(), "a", false) }()
	s.assigned("w", "b")
	s.problem("b", "")
}

// A model that needs resources waits for the word of the scheduler; without a rate
// limiter it may need what it likes.
func TestLoadsWaitForTheSchedulersWord(t *testing.T) {
	s := newStore(t)
	defer s.worker("w", cpu)()
	s.start(repository(t, map[string]string{
		"limited/config.pbtxt": needing("r", 3, false), "limited/1/f": "",
		"plain/config.pbtxt": echoConfig, "plain/1/f": "",
	}))
	s.assigned("w", "plain")
	defer s.scheduler(nil)()
	s.assigned("w", "limited", "plain")
}
