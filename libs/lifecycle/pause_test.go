package lifecycle_test

import (
	"context"
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
