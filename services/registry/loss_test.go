package registry_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry"
)

// lose takes from the store all that it holds.
func (s *store) lose() {
	s.t.Helper()
	conn, err := nats.Connect(s.bus.Addr())
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, spec := range bus.Buckets() {
		if err := js.DeleteStream(testContext(s.t), bus.StreamName(spec.Name)); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			s.t.Fatal(err)
		}
	}
}

// TestModelsOutliveTheStore has the store lose models that the repository does not
// give: one was loaded by a call with another configuration, one was unloaded.
// Versions keep their generations, so that nothing is loaded again.
func TestModelsOutliveTheStore(t *testing.T) {
	s := openStore(t, bus.Config{Listen: "127.0.0.1:0"})
	root := repository(t, map[string]string{
		"kept/config.pbtxt": echoConfig, "kept/1/f": "1", "changed/config.pbtxt": echoConfig, "changed/1/f": "1",
		"unloaded/config.pbtxt": echoConfig, "unloaded/1/f": "1",
	})
	s.worker("w1", nereidv1.DeviceKind_DEVICE_KIND_CPU)
	r := s.startWith(func(c *registry.Config) {
		c.Repositories, c.Control, c.LoadModels = []string{root}, registry.ControlExplicit, []string{"kept", "unloaded"}
	})
	epoch := s.announced(0).GetEpoch()
	// Complete, as a leader writes it: it rewrites nothing that could be read before
	// or after.
	published, _ := s.models.all(t)
	changed := proto.CloneOf(published["kept"])
	changed.Name, changed.Config.Name, changed.Config.InstanceGroup[0].Name = "changed", "changed", "changed"
	changed.Overridden, changed.Url, changed.Versions[0].Generation = true, "file://"+root+"/changed", 7
	s.put(bus.Models, "changed", changed)
	if err := r.Unload(testContext(t), "unloaded", false); err != nil {
		t.Fatal(err)
	}
	assigned := func(all map[string]*nereidv1.AssignmentValue) bool {
		return len(all[bus.OwnedKey("w1", "kept")].GetVersions()) > 0 && len(all[bus.OwnedKey("w1", "changed")].GetVersions()) > 0
	}
	s.assignments.await(t, "assignments", assigned)
	before, revision := s.models.all(t)
	if diff := cmp.Diff(changed, before["changed"], protoEqual()); diff != "" {
		t.Errorf("the leader has changed the model (-put +stored):\n%s", diff)
	}

	s.lose()
	if again := s.announced(epoch); again.GetModelsRevision() <= revision {
		t.Errorf("revision %d after %d", again.GetModelsRevision(), revision)
	}
	after, _ := s.models.all(t)
	if diff := cmp.Diff(before, after, protoEqual()); diff != "" {
		t.Errorf("models (-before +after):\n%s", diff)
	}
	s.assignments.await(t, "assignments of a worker that has not come back", assigned)
	r.logs.await(t, "the models are written again to a store that has lost them")
}
