package process_test

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nereid-serving/nereid/libs/process"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// What a burst of requests has left is returned, although nobody allocates after it.
func TestMemoryIsReturnedAfterABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := tensor.NewPool(1 << 30)
		b, err := pool.Get(32 << 20)
		if err != nil {
			t.Fatal(err)
		}
		b.Release()
		burst := make([]byte, 128<<20)
		burst[0] = 1
		runtime.KeepAlive(burst)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- process.ReturnMemory(ctx, pool) }()
		<-time.After(time.Minute)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		if inUse := m.HeapSys - m.HeapReleased; pool.Stats().Free != 0 || inUse > 64<<20 {
			t.Errorf("%d bytes of tensors and %d of the heap are kept", pool.Stats().Free, inUse)
		}
	})
}
