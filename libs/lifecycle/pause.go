package lifecycle

import (
	"context"
	"time"
)

// Pause waits for d, or until ctx is done.
func Pause(ctx context.Context, d time.Duration) { PauseUntil(ctx, nil, d) }

// PauseUntil waits for d, or until changed is closed or ctx is done.
func PauseUntil(ctx context.Context, changed <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	case <-ctx.Done():
	}
}

// UnlessStopped returns err, or nil if ctx is done: an error caused by the stop of a service is
// not a failure of the service.
func UnlessStopped(ctx context.Context, err error) error {
	select {
	case <-ctx.Done():
		return nil
	default:
		return err
	}
}
