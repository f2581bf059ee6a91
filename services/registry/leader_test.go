package registry_test

import (
	"testing"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/testkit/port"
	"github.com/nereid-serving/nereid/services/registry"
)

func replicaOf(holder, root string) func(*registry.Config) {
	return func(c *registry.Config) { c.Holder, c.Repositories = holder, []string{root} }
}

func TestStandbyTakesOver(t *testing.T) {
	files := map[string]string{"a/config.pbtxt": echoConfig, "a/1/f": "one"}
	tests := []struct {
		name string
		end  func(first *replica, connection *bus.Bus)
	}{
		{"after a leader that stops", func(first *replica, _ *bus.Bus) { first.stop() }},
		{"after a leader that is cut off", func(_ *replica, connection *bus.Bus) { connection.Close() }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := repository(t, files)
			s := openStore(t, bus.Config{Listen: "127.0.0.1:0"})
			defer s.worker("w", cpu)()
			away := openStore(t, bus.Config{URL: s.bus.Addr()})
			first := away.startWith(replicaOf("first", root))
			before := s.announced(0)
			old := s.assigned("w", "a")
			models, revision := s.models.all(t)

			second := s.startWith(replicaOf("second", root))
			tt.end(first, away.bus)
			after := s.announcedBy("second") // the first may lead anew meanwhile, where its lease was not renewed in time
			if after.GetEpoch() <= before.GetEpoch() || before.GetHolder() != "first" {
				t.Errorf("leader %v after %v", after, before)
			}
			if now, at := s.models.all(t); at != revision || now["a"].GetVersions()[0].GetGeneration() != models["a"].GetVersions()[0].GetGeneration() {
				t.Errorf("the second leader wrote the models again: revision %d, then %d", revision, at)
			}
			second.logs.await(t, "worker assigned")
			if got := s.assigned("w", "a"); got.GetLeaderEpoch() < after.GetEpoch() || old.GetLeaderEpoch() >= after.GetEpoch() {
				t.Errorf("assignment under epoch %d, then %d", old.GetLeaderEpoch(), got.GetLeaderEpoch())
			}
			first.stop()
		})
	}
}

func TestStandbyIsReady(t *testing.T) {
	root := repository(t, nil)
	s := newStore(t)
	s.startWith(replicaOf("first", root))
	s.announced(0)
	second := s.startWith(replicaOf("second", root))
	second.logs.await(t, "waiting to lead")
	if !second.Ready() {
		t.Error("the standby is not ready")
	}
}

// TestLeaderComesBackWithTheStore stops the server under a leader for longer
// than its lease lives.
func TestLeaderComesBackWithTheStore(t *testing.T) {
	dir := t.TempDir()
	listen := port.Address(t)
	server := openStore(t, bus.Config{Dir: dir, Listen: listen})
	s := openStore(t, bus.Config{URL: server.bus.Addr()})
	r := s.start(repository(t, map[string]string{"a/config.pbtxt": echoConfig, "a/1/f": "one"}))
	before := s.announced(0)
	first, revision := s.models.all(t)

	if err := server.bus.Close(); err != nil {
		t.Fatal(err)
	}
	r.logs.await(t, "leadership ended")
	openStore(t, bus.Config{Dir: dir, Listen: listen})
	s.announced(before.GetEpoch())
	if models, now := s.models.all(t); now != revision || models["a"].GetVersions()[0].GetGeneration() != first["a"].GetVersions()[0].GetGeneration() {
		t.Errorf("the models went from revision %d to %d: %v", revision, now, models)
	}
}
