// Package history distinguishes a bucket that was unreachable from one that its
// store has lost. It records what this process has observed of each bucket,
// decides whether a bucket was created again, and chooses the first revision of a
// new one. It calls no server.
//
// The first revision of a bucket identifies its incarnation: each new bucket
// starts above all revisions of the earlier ones. So a response with a lower
// first revision is outdated, and one with a higher first revision means that the
// bucket has lost its contents. A store that was restored from a backup is not
// recognized.
package history

import (
	"sync"
	"time"
)

// Incarnation identifies one creation of a bucket by its first revision.
type Incarnation uint64

// Observation is the newest incarnation that was observed of a bucket.
type Observation struct {
	Incarnation Incarnation
	// Lost closes when a later incarnation is observed.
	Lost <-chan struct{}
}

// History is safe for concurrent use.
type History struct {
	mu       sync.Mutex
	buckets  map[string]*bucket // guarded by mu
	reported time.Time          // when a loss was last to be logged; guarded by mu
}

// bucket is what was observed of one bucket.
type bucket struct {
	observed    bool
	incarnation Incarnation
	last        uint64        // the highest revision
	lost        chan struct{} // closed and replaced at each loss
}

// New returns a history of no observations.
func New() *History { return &History{buckets: make(map[string]*bucket)} }

// Observe records an answer of the server: the bucket's first revision and its
// last. It returns the newest incarnation observed so far, and reports whether
// this answer is the first to show that an earlier one is lost.
func (h *History) Observe(name string, first, last uint64) (newest Observation, lost bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.bucketLocked(name)
	b.last = max(b.last, last)
	switch {
	case !b.observed:
		b.observed, b.incarnation = true, Incarnation(first)
	case Incarnation(first) > b.incarnation:
		b.incarnation, lost = Incarnation(first), true
		close(b.lost)
		b.lost = make(chan struct{})
	}
	return Observation{b.incarnation, b.lost}, lost
}

// Observed reports whether the bucket was ever there.
func (h *History) Observed(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.bucketLocked(name).observed
}

// Lost returns a channel that closes when the bucket is next observed to be lost.
func (h *History) Lost(name string) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.bucketLocked(name).lost
}

// headroom is more than a bucket is written unobserved by a process that may
// make buckets, while a clock that is behind catches up.
const headroom = 1_000_000

// FirstRevision returns the first revision of a bucket that is created now: the microseconds
// since 1970. No bucket is written a million times a second for as long as it exists, so a
// bucket that is created later begins above all earlier revisions, although the store has lost
// them. Observed revisions make up for a clock that is behind. The numbers stay below 2^53
// until the year 2255, so that programs with floating-point numbers alone keep them.
func (h *History) FirstRevision(name string, now time.Time) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	clock := uint64(now.UnixMicro())
	if b := h.bucketLocked(name); b.observed {
		return max(clock, b.last+headroom)
	}
	return clock
}

// reportInterval is how long after one report of a loss there is no other: all
// buckets of a store are lost together.
const reportInterval = time.Minute

// ShouldReport reports whether a loss detected now should be logged: only the first in a while
// is.
func (h *History) ShouldReport(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.reported.IsZero() && now.Sub(h.reported) < reportInterval {
		return false
	}
	h.reported = now
	return true
}

func (h *History) bucketLocked(name string) *bucket {
	b := h.buckets[name]
	if b == nil {
		b = &bucket{lost: make(chan struct{})}
		h.buckets[name] = b
	}
	return b
}
