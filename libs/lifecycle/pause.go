package lifecycle

import (
	"context"
	"time"
)

// Pause lets time go by, but not after ctx is done.
func Pause(ctx context.Context, d time.Duration) { PauseUntil(ctx, nil, d) }

// PauseUntil lets time go by, but not after changed is closed or ctx is done.
func PauseUntil(ctx context.Context, changed <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	case <-ctx.Done():
	}
}
