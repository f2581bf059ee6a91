package worker

import (
	"maps"
	"slices"
	"sync"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/worker/internal/reconcile"
)

// board holds what the worker runs until it is published: the newest of each
// model, so that what is replaced before then costs nothing more. It is safe
// for concurrent use.
type board struct {
	news chan struct{} // has a value when something is new

	mu      sync.Mutex
	models  map[infer.ModelID][]reconcile.VersionStatus // guarded by mu
	reached reconcile.Revisions                         // guarded by mu
}

func newBoard() *board {
	return &board{news: make(chan struct{}, 1), models: make(map[infer.ModelID][]reconcile.VersionStatus)}
}

// put replaces what the worker runs of a model; nil is nothing.
func (b *board) put(model infer.ModelID, versions []reconcile.VersionStatus) {
	b.mu.Lock()
	if b.models[model] = versions; versions == nil {
		delete(b.models, model)
	}
	b.mu.Unlock()
	b.tell()
}

// reach notes the desired state that was reached.
func (b *board) reach(r reconcile.Revisions) {
	b.mu.Lock()
	b.reached = r
	b.mu.Unlock()
	b.tell()
}

func (b *board) tell() {
	select {
	case b.news <- struct{}{}:
	default:
	}
}

// status is what the worker runs, ordered by model, version and generation, and
// the desired state that was reached by then.
func (b *board) status() ([]reconcile.VersionStatus, reconcile.Revisions) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []reconcile.VersionStatus
	for _, model := range slices.SortedFunc(maps.Keys(b.models), infer.ModelID.Compare) {
		all = append(all, b.models[model]...)
	}
	return all, b.reached
}
