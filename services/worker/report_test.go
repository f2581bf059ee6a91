package worker

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// TestWritesThatTheEndCutsOffAreNoWarnings has a write that fails while the
// worker works, and one that fails since it stops.
func TestWritesThatTheEndCutsOffAreNoWarnings(t *testing.T) {
	core, warnings := observer.New(zap.WarnLevel)
	r := &reporter{worker: &Worker{deps: Deps{Log: zap.New(core)}}}
	ctx, stop := context.WithCancel(t.Context())
	r.warn(ctx, errors.New("no answer"))
	stop()
	r.warn(ctx, ctx.Err())
	if warnings.Len() != 1 {
		t.Errorf("warnings: %v, want the first one alone", warnings.All())
	}
}
