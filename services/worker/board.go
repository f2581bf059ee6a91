package worker

import (
	"context"
	"maps"
	"sync"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/worker/internal/reconcile"
)

// board holds what the worker runs until it is published: the newest of each
// model of which something is new, so that what is replaced before then costs
// nothing more. It is safe for concurrent use.
type board struct {
	news chan struct{} // has a value when something is new

	mu      sync.Mutex
	models  map[infer.ModelID][]reconcile.VersionStatus // what is new; nil is nothing any more; guarded by mu
	reached reconcile.Revisions                         // guarded by mu
	running map[infer.ModelID]bool                      // guarded by mu
	changed chan struct{}                               // closed and replaced when running changes; guarded by mu
}

func newBoard() *board {
	return &board{
		news: make(chan struct{}, 1), models: make(map[infer.ModelID][]reconcile.VersionStatus),
		running: make(map[infer.ModelID]bool), changed: make(chan struct{}),
	}
}

// put replaces what the worker runs of a model; nil is nothing.
func (b *board) put(model infer.ModelID, versions []reconcile.VersionStatus) {
	b.mu.Lock()
	b.models[model] = versions
	if b.running[model] = true; versions == nil {
		delete(b.running, model)
	}
	close(b.changed)
	b.changed = make(chan struct{})
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

// waitEmpty waits until the worker runs nothing, or ctx is done.
func (b *board) waitEmpty(ctx context.Context) {
	for {
		b.mu.Lock()
		left, changed := len(b.running), b.changed
		b.mu.Unlock()
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

// take gives what is new of the models, and the desired state that was reached
// by then.
func (b *board) take() (map[infer.ModelID][]reconcile.VersionStatus, reconcile.Revisions) {
	b.mu.Lock()
	defer b.mu.Unlock()
	news := b.models
	b.models = make(map[infer.ModelID][]reconcile.VersionStatus)
	return news, b.reached
}

// giveBack takes what could not be published, unless there is newer news.
func (b *board) giveBack(news map[infer.ModelID][]reconcile.VersionStatus) {
	b.mu.Lock()
	maps.Copy(news, b.models)
	b.models = news
	b.mu.Unlock()
	b.tell()
}
