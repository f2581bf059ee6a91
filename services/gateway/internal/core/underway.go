package core

import "sync"

// underway tracks which versions are executing ensembles, so that these are not given up while steps are still
// to come.
type underway struct {
	mu      sync.Mutex
	current map[string]bool          // the compositions of the current snapshot; guarded by mu
	running map[string]int           // number of requests by composition; guarded by mu
	left    map[string]chan struct{} // closed when the last request of a superseded composition has ended; guarded by mu
}

func (u *underway) begin(of *Composed) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.running == nil {
		u.running = make(map[string]int)
	}
	u.running[of.versions]++
}

func (u *underway) end(of *Composed) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.running[of.versions]--; u.running[of.versions] > 0 {
		return
	}
	delete(u.running, of.versions)
	if left := u.left[of.versions]; left != nil {
		close(left)
		delete(u.left, of.versions)
	}
}

// set records the compositions of a new snapshot.
func (u *underway) set(s *Snapshot) {
	current := make(map[string]bool)
	for _, m := range s.ordered {
		for _, v := range m.Versions {
			if v.Composed != nil {
				current[v.Composed.versions] = true
			}
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.current = current
}

// superseded returns a channel that is closed when the requests of one composition that is not in the current
// snapshot have ended. It returns nil if no such requests are in flight.
func (u *underway) superseded() <-chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	for of := range u.running {
		if u.current[of] {
			continue
		}
		left := u.left[of]
		if left == nil {
			left = make(chan struct{})
			if u.left == nil {
				u.left = make(map[string]chan struct{})
			}
			u.left[of] = left
		}
		return left
	}
	return nil
}
