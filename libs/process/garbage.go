package process

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// garbage is the percentage of the heap by which it may grow before it is
// collected: the path of requests allocates little, and the rest is small.
const garbage = 400

// CollectLate makes Go collect garbage less often than by default, unless the environment sets
// how often.
func CollectLate() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
}

// Bounds of the heap, in bytes: what it needs beside requests, and the requests below which
// memory counts for more than the time for collecting garbage.
const (
	heapBeside    = 64 << 20
	fewRequests   = 1 << 30
	soonerPerCent = 100
)

// CollectWithin makes Go collect garbage more often in a process whose requests may hold at
// most that many bytes: if that is little, and once the heap exceeds the needs of requests and
// process. Settings in the environment take precedence. 0 is no limit.
func CollectWithin(requests int64) {
	if requests <= 0 {
		return
	}
	if os.Getenv("GOGC") == "" && requests < fewRequests {
		debug.SetGCPercent(soonerPerCent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(requests + heapBeside)
	}
}

// Memory is returned to the operating system after so long without use, and garbage of so many bytes
// is collected that would wait for more.
const (
	memoryRest  = 15 * time.Second
	muchGarbage = 64 << 20
)

// ReturnMemory returns memory that a burst of requests has left to the operating system until
// ctx is done: memory that the pool has not used for a while, and the heap of a process that
// allocates too little to collect its garbage.
func ReturnMemory(ctx context.Context, pool *tensor.Pool) error {
	tick := time.NewTicker(memoryRest)
	defer tick.Stop()
	samples := []metrics.Sample{
		{Name: "/gc/cycles/total:gc-cycles"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
	}
	for collections := uint64(0); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		pool.TrimUnused()
		metrics.Read(samples)
		heap := uint64(0)
		for _, s := range samples[1:] {
			heap += s.Value.Uint64()
		}
		if n := samples[0].Value.Uint64(); n != collections {
			collections = n
			continue
		}
		if heap >= muchGarbage {
			runtime.GC() // pools of objects give up in two
			debug.FreeOSMemory()
			metrics.Read(samples)
			collections = samples[0].Value.Uint64()
		}
	}
}
