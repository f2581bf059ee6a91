package core

import (
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
)

// Two watches tell of leases, of which one may be behind: what is older than what is known
// changes nothing.
func TestOldEventsOfALeaseChangeNothing(t *testing.T) {
	s := newScript()
	s.step(&Event{Kind: BecomeLeader})
	held := func(incarnation, revision uint64) {
		s.step(&Event{Kind: LeaseHeld, Key: "w", Instance: infer.InstanceID{Worker: incarnation}, Revision: revision})
	}
	held(5, 5)
	held(7, 7)
	for what, old := range map[string]func(){
		"an earlier incarnation": func() { held(5, 6) },
		"an expiry":              func() { s.step(&Event{Kind: LeaseEnded, Key: "w", Revision: 6}) },
		"a release":              func() { s.step(&Event{Kind: LeaseEnded, Key: "w", Revision: 6, Released: true}) },
	} {
		old()
		if got := s.core.leases["w"]; got.incarnation != 7 {
			t.Errorf("after %s that is old, incarnation %d holds the lease", what, got.incarnation)
		}
		if w := s.core.workers[7]; w == nil || !w.leased || w.released || w.replaced {
			t.Errorf("after %s that is old the holder of the lease is %+v", what, w)
		}
	}
	s.step(&Event{Kind: LeaseEnded, Key: "w", Revision: 8, Released: true})
	if got := s.core.leases["w"]; got.incarnation != 0 {
		t.Errorf("after its release incarnation %d holds the lease", got.incarnation)
	}
}
