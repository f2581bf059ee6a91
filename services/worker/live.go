package worker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
)

// liveModels are the models of which the worker has a version, in any state.
type liveModels struct {
	mu     sync.Mutex
	models map[infer.ModelID]struct{} // guarded by mu
}

func (l *liveModels) show(model infer.ModelID, live bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if live {
		l.models[model] = struct{}{}
	} else {
		delete(l.models, model)
	}
}

func (l *liveModels) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.models)
}

// announceEnd waits for the end of ctx and then logs, once per second until ended is
// closed, how many models are still live. The line is Triton's.
func (w *Worker) announceEnd(ctx context.Context, live *liveModels, ended <-chan struct{}) {
	<-ctx.Done()
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for left := int(w.config.DrainTimeout.Seconds()); ; left-- {
		w.deps.Log.Info(fmt.Sprintf("Timeout %d: Found %d live models and 0 in-flight non-inference requests", left, live.count()))
		select {
		case <-second.C:
		case <-ended:
			return
		}
	}
}
