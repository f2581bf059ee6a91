package worker

import (
	"context"
	"maps"
	"sync"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/worker/internal/reconcile"
)

// mailbox holds what the worker runs until it is published: for each changed model only the latest state, so a state
// that is replaced before it was published costs nothing more. It is safe for concurrent use.
type mailbox struct {
	changed chan struct{} // has a value when something has changed

	mu      sync.Mutex
	models  map[infer.ModelID][]reconcile.VersionStatus // those that have changed; nil means none left; guarded by mu
	reached reconcile.Revisions                         // guarded by mu
	running map[infer.ModelID]bool                      // guarded by mu
	waiters chan struct{}                               // closed and replaced when running changes; guarded by mu
}

func newMailbox() *mailbox {
	return &mailbox{
		changed: make(chan struct{}, 1), models: make(map[infer.ModelID][]reconcile.VersionStatus),
		running: make(map[infer.ModelID]bool), waiters: make(chan struct{}),
	}
}

// put replaces what the worker runs of a model; nil means nothing.
func (m *mailbox) put(model infer.ModelID, versions []reconcile.VersionStatus) {
	m.mu.Lock()
	m.models[model] = versions
	if m.running[model] = true; versions == nil {
		delete(m.running, model)
	}
	close(m.waiters)
	m.waiters = make(chan struct{})
	m.mu.Unlock()
	m.notify()
}

// reach sets the desired state that was reached.
func (m *mailbox) reach(r reconcile.Revisions) {
	m.mu.Lock()
	m.reached = r
	m.mu.Unlock()
	m.notify()
}

// notify wakes the reporter.
func (m *mailbox) notify() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// waitEmpty waits until the worker runs nothing, or ctx is done.
func (m *mailbox) waitEmpty(ctx context.Context) {
	for {
		m.mu.Lock()
		left, changed := len(m.running), m.waiters
		m.mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// receive removes and returns the models that have changed, with the desired state that was reached by then.
func (m *mailbox) receive() (map[infer.ModelID][]reconcile.VersionStatus, reconcile.Revisions) {
	m.mu.Lock()
	defer m.mu.Unlock()
	models := m.models
	m.models = make(map[infer.ModelID][]reconcile.VersionStatus)
	return models, m.reached
}

// putBack returns models that could not be published, except where a newer value has arrived.
func (m *mailbox) putBack(models map[infer.ModelID][]reconcile.VersionStatus) {
	m.mu.Lock()
	maps.Copy(models, m.models)
	m.models = models
	m.mu.Unlock()
	m.notify()
}
