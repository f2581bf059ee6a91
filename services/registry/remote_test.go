package registry_test

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/registry"
)

// listen takes the calls of other services, by serve, until the test's end.
func listen(t *testing.T) (address string, serve func(*replica)) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	t.Cleanup(s.Stop)
	return l.Addr().String(), func(r *replica) {
		r.RegisterControl(s)
		go func() { _ = s.Serve(l) }() // ends with Stop
	}
}

// caller is a gateway's end of the control calls.
func (s *store) caller() *control.RegistryClient {
	s.t.Helper()
	finder := control.NewFinder(s.bus, control.RegistryRole)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- finder.Run(ctx) }()
	client := control.NewRegistryClient(finder, control.Options{})
	s.t.Cleanup(func() {
		client.Close()
		cancel()
		if err := <-ended; err != nil {
			s.t.Errorf("the finder: %v", err)
		}
	})
	return client
}

// TestLoadFromAfarGoesOnWithTheNextLeader stops the leader in the middle of a
// load that another process has asked for: it goes on at the standby.
func TestLoadFromAfarGoesOnWithTheNextLeader(t *testing.T) {
	address, serve := listen(t)
	s := newScene(t, func(c *registry.Config) { c.Holder, c.Address = "first", address })
	serve(s.replica)
	before := s.announced(0)
	if before.GetAddress() != address {
		t.Errorf("the leader's address is %q, want %q", before.GetAddress(), address)
	}
	other, serve := listen(t)
	second := s.startWith(func(c *registry.Config) {
		c.Holder, c.Address, c.Repositories, c.Control, c.FileQuietPeriod = "second", other, []string{s.root}, registry.ControlExplicit, 0
	})
	serve(second)
	second.logs.await(t, "waiting to lead")
	client := s.caller()
	if err := client.Load(testContext(t), "none", "", nil); errs.Of(err) != errs.LoadUnknownModel {
		t.Errorf("a model that is not there: %v", err)
	}

	write(t, filepath.Join(s.root, "m/1/f"), "two")
	loaded := make(chan error, 1)
	go func() { loaded <- client.Load(testContext(t), "m", "", nil) }()
	s.model("a swap", swapping)
	s.replica.stop()
	if after := s.announced(before.GetEpoch()); after.GetAddress() != other {
		t.Errorf("the next leader is %v, want it at %s", after, other)
	}
	s.worker.say(runs(s.assigned("w", "m", "m"), nil))
	if err := <-loaded; err != nil {
		t.Errorf("Load = %v", err)
	}
	s.model("the end of the swap", whole)
	if err := client.Unload(testContext(t), "m", false); err != nil {
		t.Errorf("Unload = %v", err)
	}
}
