package perf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Options say how long a load runs, and what it may use.
type Options struct {
	// Warmup precedes the measured part and is not counted.
	Warmup time.Duration
	// Length is that of the measured part.
	Length time.Duration
	// Sequences is how many sequences an open loop keeps active.
	Sequences int
	// MaxInFlight bounds the requests in flight of an open loop. Those that are due
	// beyond it are not sent and are reported.
	MaxInFlight int
	// Grace is how long requests in flight may take after the measured part.
	Grace time.Duration
	// Seed starts everything that is drawn.
	Seed uint64
	// Metrics is the URL of the server's metrics; empty leaves them out.
	Metrics string
	// Progress is called about once a second of the measured part, if it is set.
	Progress func(Progress)
}

// Progress is where a run is.
type Progress struct {
	Load     Load
	Elapsed  time.Duration // of the measured part; negative before it
	Length   time.Duration
	Answered int64
	Failed   int64
	P99      time.Duration
}

// Bench measures one server. It runs one load at a time.
type Bench struct {
	target  Target
	classes []Class
	options Options
	sender  sender
	runs    uint64        // so far; each draws other arrivals
	replay  *replay       // nil without a trace
	shared  *sharedMemory // nil where tensors go inline
}

// New returns a bench. Nothing is sent before a run.
func New(t Target, classes []Class, o Options) (*Bench, error) {
	switch {
	case len(classes) == 0:
		return nil, errs.New(errs.ConfigInvalid, "there is nothing to send: name a model")
	case o.Length <= 0:
		return nil, errs.New(errs.ConfigInvalid, "the length of a run is %v: want more than 0", o.Length)
	}
	s, err := dial(&t, classes)
	if err != nil {
		return nil, err
	}
	o.MaxInFlight = cmp.Or(o.MaxInFlight, 4096)
	o.Grace = cmp.Or(o.Grace, 10*time.Second)
	o.Sequences = cmp.Or(o.Sequences, 4)
	return &Bench{target: t, classes: classes, options: o, sender: s}, nil
}

// Share moves the tensors of all requests into shared memory, which the server must be able to open.
// It is called once, before the first run.
func (b *Bench) Share(ctx context.Context) error {
	b.shared = &sharedMemory{prefix: fmt.Sprintf("perf-%d-%d", os.Getpid(), time.Now().UnixNano())}
	for i := range b.classes {
		if err := b.shared.place(ctx, &b.target, &b.classes[i]); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the connections.
func (b *Bench) Close() error { return errors.Join(b.shared.close(), b.sender.Close()) }

// run is one load that runs or has run.
type run struct {
	*Bench
	load    Load
	source  feed
	record  *recorder
	playing *playback // of a trace, and then the source; nil without one
	start   time.Time // of the measured part
	length  time.Duration
	seed    uint64
	flight  atomic.Int64
	ended   sync.WaitGroup // of the requests and clients

	// Known when the run has ended.
	elapsed   time.Duration // of the measured part
	cpu, wall time.Duration
	server    *Server
}

// Run sends a load and reports what became of it. When ctx ends the run ends early,
// and the report covers what was measured until then.
func (b *Bench) Run(ctx context.Context, load Load) (*Measurement, error) {
	return b.runFor(ctx, load, b.options.Warmup, b.options.Length)
}

// runFor runs a load and summarizes it.
func (b *Bench) runFor(ctx context.Context, load Load, warmup, length time.Duration) (*Measurement, error) {
	r, err := b.run(ctx, load, warmup, length, false)
	if err != nil {
		return nil, err
	}
	return r.measurement(), nil
}

// run runs a load until its last request has ended. With each it keeps every
// latency, as short runs may.
func (b *Bench) run(ctx context.Context, load Load, warmup, length time.Duration, each bool) (r *run, err error) {
	slots := load.Concurrency
	if slots == 0 {
		slots = b.options.Sequences
	}
	b.runs++
	seed := b.options.Seed + b.runs
	r = &run{Bench: b, load: load}
	if load.Trace != "" {
		r.playing = b.replay.play()
		r.source, length, warmup = r.playing, b.replay.length(load.Speed), 0
	} else if r.source, err = newSource(&b.target, b.classes, slots, seed); err != nil {
		return nil, err
	}
	r.record, r.start, r.length, r.seed = newRecorder(len(b.classes), length, each), time.Now().Add(warmup), length, seed
	calls, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	stopProgress := r.reportProgress(ctx)
	watched := b.watch(ctx, r)
	before := used()
	if load.Concurrency > 0 {
		r.closed(ctx, calls)
	} else {
		r.open(ctx, calls)
	}
	r.elapsed = min(max(time.Since(r.start), 0), length)
	grace := time.AfterFunc(b.options.Grace, abort)
	defer grace.Stop()
	r.ended.Wait()
	stopProgress()
	r.cpu, r.wall = used()-before, time.Since(r.start)+warmup
	r.server = watched()
	return r, nil
}

// reportProgress reports the run once a second until it is stopped.
func (r *run) reportProgress(ctx context.Context) (stop func()) {
	if r.options.Progress == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var reporter sync.WaitGroup
	reporter.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				r.options.Progress(r.progress())
			}
		}
	})
	return func() {
		cancel()
		reporter.Wait()
	}
}

func (r *run) progress() Progress {
	r.record.mu.Lock()
	defer r.record.mu.Unlock()
	p := Progress{Load: r.load, Elapsed: time.Since(r.start), Length: r.length}
	all := &r.record.groups[len(r.classes)]
	for i := range batches {
		p.Answered += all.answered[i]
		p.Failed += all.failed[i]
	}
	p.P99 = time.Duration(all.latency.all().ValueAtQuantile(99)) * time.Microsecond
	return p
}

// closed runs the clients of a closed loop until the measured part is over. Their
// last requests may still be in flight.
func (r *run) closed(ctx, calls context.Context) {
	end := r.start.Add(r.length)
	ctx, stop := context.WithDeadline(ctx, end)
	defer stop()
	for client := range r.load.Concurrency {
		r.ended.Go(func() {
			for now := time.Now(); now.Before(end) && ctx.Err() == nil; now = time.Now() {
				r.send(calls, r.source.take(client), now)
			}
		})
	}
	<-ctx.Done()
}

// open sends requests when they are due until the measured part is over.
func (r *run) open(ctx, calls context.Context) {
	begin := time.Now()
	rng := rand.New(rand.NewPCG(r.seed, 2)) //nolint:gosec // not for secrets
	total := r.start.Add(r.length).Sub(begin)
	offsets := r.load.offsets(total, rng)
	if r.playing != nil {
		offsets = r.replay.offsets(r.load.Speed)
	}
	pace(ctx, begin, offsets, func(due time.Time) {
		c := r.source.take(-1) // in the order of a trace
		if r.flight.Load() >= int64(r.options.MaxInFlight) {
			r.record.skip(due.Sub(r.start))
			c.turn.pass()
			return
		}
		r.flight.Add(1)
		r.ended.Go(func() {
			defer r.flight.Add(-1)
			r.send(calls, c, due)
		})
	})
}

// send sends one request and records what became of it.
func (r *run) send(ctx context.Context, c *call, due time.Time) {
	if c.slot != nil {
		c.slot.mu.Lock()
		defer c.slot.mu.Unlock()
		c.slot.source.advance(c)
	}
	c.turn.await(ctx)
	defer c.turn.pass()
	o := outcome{class: c.class, due: due.Sub(r.start), sent: time.Since(r.start)}
	var last time.Duration
	o.err = r.sender.send(ctx, c, func() {
		now := time.Since(r.start)
		if o.responses++; o.responses == 1 {
			o.first = now
		} else {
			r.record.gap(c.class, o.due, now-last)
		}
		last = now
	})
	o.done = time.Since(r.start)
	if o.err != nil && c.slot != nil {
		c.slot.source.restart(c.slot)
	}
	if c.judge != nil && o.err == nil {
		c.judge(c.kept)
	}
	r.record.add(&o)
}

// used is the processor time of this process so far.
func used() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
