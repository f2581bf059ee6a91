package registry_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry"
)

// TestEveryReplicaTellsOfTheCluster asks a leader and a standby, one of which
// cannot ask the scheduler.
func TestEveryReplicaTellsOfTheCluster(t *testing.T) {
	s := newScene(t, func(c *registry.Config) { c.Holder, c.Version = "first", "1.2.3" })
	s.announced(0)
	play(s.store, bus.Leaders, "pool.default", &nereidv1.LeaderValue{Schema: nereidv1.Schema, Holder: "s", Address: "s:8011"})
	s.queues = func(_ context.Context, address string) ([]infer.Queue, error) {
		if address != "s:8011" {
			t.Errorf("the scheduler was looked for at %q", address)
		}
		return nil, errs.New(errs.StateUnavailable, "it does not respond")
	}
	second := s.startWith(replicaOf("second", s.root))
	second.logs.await(t, "waiting to lead")
	viewOf[*nereidv1.ServiceValue](t, s.bus, bus.Registries).await(t, "both replicas, ready", func(all map[string]*nereidv1.ServiceValue) bool {
		return all["first"].GetState() == nereidv1.State_STATE_READY && all["second"].GetState() == nereidv1.State_STATE_READY
	})
	for r, want := range map[*replica][]string{
		s.replica: nil, second: {"the scheduler of the pool default does not report its queues: it does not respond"},
	} {
		c, err := r.Status(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		var services []string
		for _, service := range c.GetServices() {
			services = append(services, service.GetRole()+" "+service.GetId()+" "+service.GetRelease())
		}
		if diff := cmp.Diff([]string{"gateway g ", "registry first 1.2.3", "registry second ", "worker w "}, services); diff != "" {
			t.Errorf("services (-want +got):\n%s", diff)
		}
		if m := c.GetModels(); len(m) != 1 || m[0].GetVersions()[0].GetWorkers()[0].GetState() != nereidv1.State_STATE_READY {
			t.Errorf("models: %v", m)
		}
		if diff := cmp.Diff(want, c.GetProblems()); diff != "" {
			t.Errorf("problems (-want +got):\n%s", diff)
		}
	}
}
