package lifecycle_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nereid-serving/nereid/libs/lifecycle"
)

func TestPauseEndsWithItsTimeOrItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		begun := time.Now()
		lifecycle.Pause(ctx, time.Minute)
		if took := time.Since(begun); took != time.Minute {
			t.Errorf("a pause of a minute took %v", took)
		}
		cancel()
		lifecycle.Pause(ctx, time.Hour)
		if took := time.Since(begun); took != time.Minute {
			t.Errorf("a pause after the end of its context: %v have gone by", took)
		}
	})
}

func TestAnErrorWhileStoppingIsNone(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	failed := errors.New("failed")
	if err := lifecycle.UnlessStopped(ctx, failed); !errors.Is(err, failed) {
		t.Errorf("while it runs: %v", err)
	}
	stop()
	if err := lifecycle.UnlessStopped(ctx, failed); err != nil {
		t.Errorf("after the stop: %v", err)
	}
}
