package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/lifecycle"
)

// past is what this process has seen of the buckets. It tells a bucket that
// only was away from one that has lost what it held: made anew, or gone back to
// what it was earlier. It is safe for concurrent use.
type past struct {
	mu      sync.Mutex
	buckets map[string]*sighting // guarded by mu
	told    time.Time            // when a loss was last logged; guarded by mu
	missing chan struct{}        // has room for one; a bucket is to be made
}

// sighting is what was seen of one bucket.
type sighting struct {
	made time.Time // when its stream was made; zero before the first look
	last uint64    // the highest revision that it is known to have reached
	// life counts how often the bucket was found to have lost what it held.
	life uint64
	// lost is closed and replaced when it does.
	lost chan struct{}
	// stale is when a stream was made that has gone back, and since that was
	// found: what it holds is not to be believed.
	stale time.Time
	since time.Time
}

func newPast() *past {
	return &past{buckets: make(map[string]*sighting), missing: make(chan struct{}, 1)}
}

// of gives what was seen of a bucket. The caller holds mu.
func (p *past) of(bucket string) *sighting {
	s := p.buckets[bucket]
	if s == nil {
		s = &sighting{lost: make(chan struct{})}
		p.buckets[bucket] = s
	}
	return s
}

func (p *past) seen(bucket string) sighting {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *p.of(bucket)
}

// reach notes a revision that a bucket has.
func (p *past) reach(bucket string, revision uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.of(bucket)
	s.last = max(s.last, revision)
}

// lose counts a loss. The caller holds the lock.
func (s *sighting) lose() {
	s.life++
	close(s.lost)
	s.lost = make(chan struct{})
}

// want asks for buckets to be made by whoever may: see [Bus.KeepBuckets].
func (p *past) want() {
	select {
	case p.missing <- struct{}{}:
	default:
	}
}

// lossPause is for how long after one line about a loss there is no other: all
// buckets are lost together.
const lossPause = time.Minute

// first reports whether a loss is the first in a while.
func (p *past) first() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.told) < lossPause {
		return false
	}
	p.told = time.Now()
	return true
}

// take enters what a look found, made after the sighting before was known. It
// reports false if another look has found a loss meanwhile, after which this
// one says nothing, and else why the bucket has lost what it held, if it has.
func (p *past) take(bucket string, before sighting, info *jetstream.StreamInfo) (now sighting, cause string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.of(bucket)
	if s.life != before.life {
		return *s, "", false
	}
	back := info.State.LastSeq < before.last && !info.Created.Equal(s.stale)
	switch {
	case s.made.IsZero():
	case !info.Created.Equal(s.made):
		cause = fmt.Sprintf("it was made anew at %s", info.Created.Format(time.RFC3339))
	case back:
		cause = fmt.Sprintf("it has gone back from revision %d to %d, as from a backup or by writes that never reached the disk", before.last, info.State.LastSeq)
	}
	s.made, s.last = info.Created, max(s.last, info.State.LastSeq)
	if cause != "" {
		s.lose()
		s.stale = time.Time{}
	}
	if cause != "" && back {
		p.disbelieve()
	}
	return *s, cause, true
}

// disbelieve notes that the store has gone back. All buckets have, although not
// each can tell. The caller holds mu.
func (p *past) disbelieve() {
	for _, s := range p.buckets {
		if s.stale.IsZero() {
			s.stale, s.since = s.made, time.Now()
		}
	}
}

// forgive has a bucket believed that has gone back: nobody makes it anew.
func (p *past) forgive(bucket string, revision uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.of(bucket)
	s.stale, s.last = time.Time{}, revision
}

// doubt notes that a bucket had reached a revision which it does not have.
func (p *past) doubt(bucket string, reached uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.of(bucket)
	if s.made.IsZero() {
		return // not even looked at
	}
	if s.last = max(s.last, reached); s.stale.IsZero() {
		s.lose()
	}
	p.disbelieve()
}

// stale reports whether any bucket is as it was earlier.
func (p *past) stale() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.buckets {
		if !s.stale.IsZero() {
			return true
		}
	}
	return false
}

const (
	// stalePatience is for how long a bucket that has gone back is not
	// believed: until it is made anew, by a registry that has noticed too.
	stalePatience = 10 * time.Second
	// A new leader of a replicated stream may answer before it has taken in all:
	// so often is it asked again, with a pause.
	behindLooks = 5
	behindPause = 200 * time.Millisecond
)

// errStale says that a bucket holds what it held earlier.
var errStale = errors.New("the bucket has gone back to an earlier state")

// look asks for a bucket's stream and notices whether it has lost what it held.
func (b *Bus) look(ctx context.Context, bucket string) (info *jetstream.StreamInfo, now sighting, err error) {
	for attempt := 1; ; attempt++ {
		before := b.past.seen(bucket)
		stream, err := b.js.Stream(ctx, StreamName(bucket))
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			b.gone(bucket, before)
		}
		if err != nil {
			return nil, before, err
		}
		info = stream.CachedInfo()
		behind := info.Config.Replicas > 1 && info.Created.Equal(before.made) && info.State.LastSeq < before.last
		if behind && attempt < behindLooks {
			lifecycle.Pause(ctx, behindPause)
			continue
		}
		now, cause, ok := b.past.take(bucket, before, info)
		if !ok {
			continue
		}
		if cause != "" {
			b.lost(bucket, cause)
		}
		return info, now, nil
	}
}

// believed reports whether what a bucket holds counts.
func (b *Bus) believed(bucket string, info *jetstream.StreamInfo) error {
	s := b.past.seen(bucket)
	if s.stale.IsZero() || !s.stale.Equal(info.Created) {
		return nil
	}
	if time.Since(s.since) < stalePatience {
		return errStale
	}
	b.log.Warn("the control plane's store is taken as it is: no registry has made it anew", zap.String("bucket", bucket))
	b.past.forgive(bucket, info.State.LastSeq)
	return nil
}

// gone notes that a bucket is not there.
func (b *Bus) gone(bucket string, before sighting) {
	b.past.want()
	if !before.made.IsZero() {
		b.tell(bucket, "it is not there")
	}
}

// lost notes that a bucket has lost what it held.
func (b *Bus) lost(bucket, cause string) {
	b.tell(bucket, cause)
	b.past.want()
}

func (b *Bus) tell(bucket, cause string) {
	level := zap.DebugLevel
	if b.past.first() {
		level = zap.WarnLevel
	}
	b.log.Log(level, "the control plane's store has lost what it held: what serves goes on, a registry makes the buckets again, and each service writes what it keeps there",
		zap.String("bucket", bucket), zap.String("cause", cause))
}

// Doubt says that a value in the bucket tells of a revision that the bucket has
// not reached: it has gone back, unnoticed by this process. A registry makes
// the store anew then. A revision that it has reached is no doubt.
func (b *Bus) Doubt(ctx context.Context, bucket string, revision uint64) error {
	info, _, err := b.look(ctx, bucket)
	if err != nil {
		return unavailable(err, "look at the bucket %q", bucket)
	}
	if revision <= info.State.LastSeq {
		return nil
	}
	b.past.doubt(bucket, revision)
	b.lost(bucket, fmt.Sprintf("a value tells of its revision %d, and it has %d", revision, info.State.LastSeq))
	return nil
}
