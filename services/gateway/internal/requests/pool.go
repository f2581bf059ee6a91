package requests

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/mono"
)

// room is how long to wait where a new scheduler has no room for what is
// submitted again.
const room = 10 * time.Millisecond

// Session is one connection to a scheduler in another process. Its methods do not
// block.
type Session interface {
	// Submit sends a request, which stays the caller's. The error is
	// errs.NoWorker where the session has ended, and errs.QueueFull where the
	// scheduler has no room now.
	Submit(*infer.Request) error
	Cancel(infer.RequestID)
	// CacheUsed tells what the response cache did for a request.
	CacheUsed(infer.CacheUse)
	// EnsembleEnded tells of the end of a request for an ensemble.
	EnsembleEnded(infer.EnsembleEnd)
	// Done is closed when the session has ended. The pool is not told anything by it
	// any more then.
	Done() <-chan struct{}
}

// Bounds are those of what waits while no scheduler is there.
type Bounds struct {
	MaxRequests int
	MaxBytes    int64
	// Wait is for how long a request waits for a scheduler.
	Wait time.Duration
	// Grace is for how long an answer is awaited that was sent, or whose worker
	// is gone or has dropped answers, before it begins to come.
	Grace time.Duration
}

// DefaultBounds cover a failover.
func DefaultBounds() Bounds {
	return Bounds{MaxRequests: 1 << 16, MaxBytes: 1 << 30, Wait: 10 * time.Second, Grace: 5 * time.Second}
}

// Lend returns tensors as messages carry them, those that are too large by their
// names, and what ends the lease of these; nil where nothing is lent.
type Lend func(tensors []infer.Tensor, holder uint64) (carried []infer.Tensor, end func())

// Pool is where the table's requests for the models of one pool go. It has at most
// one session at a time, whose handler it is. It is safe for concurrent use, but for
// Begin and End.
type Pool struct {
	table  *Table
	name   string
	bounds Bounds
	clock  mono.Clock
	lend   Lend

	mu      sync.Mutex
	session Session   // nil while there is none; guarded by mu
	epoch   uint64    // of its scheduler; guarded by mu
	drains  bool      // it takes nothing new, as it may say before Begin; guarded by mu
	renews  bool      // it is being submitted what has no answer; guarded by mu
	behind  []*entry  // came meanwhile, and go behind it; guarded by mu
	left    mono.Time // when the last session ended; 0 is never; guarded by mu
	// sequences are the submissions of each sequence, in the order in which they
	// came; guarded by mu.
	sequences map[sequenceName][]*step

	waiting, waitingBytes atomic.Int64 // submissions without a scheduler, and their inputs' bytes
	ending                atomic.Int64 // submissions with an end set
}

// NewPool makes a pool of the table, whose requests wait until Begin. lend may be
// nil, which lends nothing.
func (t *Table) NewPool(name string, b Bounds, clock mono.Clock, lend Lend) *Pool {
	if lend == nil {
		lend = func(inputs []infer.Tensor, _ uint64) ([]infer.Tensor, func()) { return inputs, nil }
	}
	return &Pool{table: t, name: name, bounds: b, clock: clock, lend: lend, sequences: make(map[sequenceName][]*step)}
}

// Name is the pool's.
func (p *Pool) Name() string { return p.name }

// Waiting is how many requests wait for a scheduler.
func (p *Pool) Waiting() int { return int(p.waiting.Load()) }

// Reachable reports whether requests can be expected to get to a scheduler: there
// is a session, or the last one has ended so lately that another scheduler may
// yet take the pool over before what waits has waited too long.
func (p *Pool) Reachable() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.session != nil || p.left != 0 && p.clock.Now().Sub(p.left) < p.bounds.Wait/2
}

// CacheUsed tells the scheduler what the response cache did for a request. While
// there is none, nobody counts it.
func (p *Pool) CacheUsed(u infer.CacheUse) {
	p.mu.Lock()
	session := p.session
	p.mu.Unlock()
	if session != nil {
		session.CacheUsed(u)
	}
}

// EnsembleEnded tells the scheduler of the end of a request for an ensemble. While
// there is none, nobody counts it.
func (p *Pool) EnsembleEnded(e infer.EnsembleEnd) {
	p.mu.Lock()
	session := p.session
	p.mu.Unlock()
	if session != nil {
		session.EnsembleEnded(e)
	}
}

// Submit takes over a request that the table has. On an error the caller still owns
// it.
func (p *Pool) Submit(r *infer.Request) error {
	e := p.table.find(r.Work.Request)
	if e == nil { // its client has gone
		r.Release()
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		r.Release()
		return nil
	}
	s := &submission{pool: p, request: r, inputs: r.Inputs, sent: r.Received}
	session, err := p.admit(e, s)
	if err != nil {
		return err
	}
	e.submission = s
	if session == nil {
		return nil
	}
	err = s.send(session)
	if err == nil || errs.Of(err) == errs.NoWorker { // the session has ended, and the next one gets the request
		return nil
	}
	e.withdraw()
	return err
}

// admit enters a submission, and returns the session for it; nil where it waits for
// one.
func (p *Pool) admit(e *entry, s *submission) (Session, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	session := p.session
	if p.drains {
		session = nil
	}
	if session != nil && !p.renews {
		s.epoch = p.epoch
		p.joinSequence(s)
		return session, nil
	}
	waiting := p.waiting.Load()
	if waiting >= int64(p.bounds.MaxRequests) || waiting > 0 && p.waitingBytes.Load()+s.request.InputBytes() > p.bounds.MaxBytes {
		return nil, p.absent(s.request)
	}
	p.joinSequence(s)
	s.park()
	if session != nil {
		p.behind = append(p.behind, e)
	}
	return nil, nil
}

func (p *Pool) absent(r *infer.Request) *errs.Error {
	return errs.New(errs.NoScheduler, "no scheduler holds the pool %q", p.name).WithModel(r.Model.Name)
}

// Expect is called before a session is opened, whose handler the pool is.
func (p *Pool) Expect() { p.setDrains(false) }

// Draining has new requests wait for the next session.
func (p *Pool) Draining() { p.setDrains(true) }

func (p *Pool) setDrains(drains bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drains = drains
}

// Begin submits to the scheduler of the given epoch what has no answer, in the order
// in which it came, and returns how much of it was submitted before. What comes
// meanwhile goes behind it: a request of a sequence must not overtake one that the
// sequence had before. It waits for room as long as ctx allows.
func (p *Pool) Begin(ctx context.Context, session Session, epoch uint64) (again int) {
	p.mu.Lock()
	p.session, p.epoch, p.renews = session, epoch, true
	p.mu.Unlock()
	list := p.table.all()
	slices.SortFunc(list, func(a, b *entry) int { return cmp.Compare(a.id.Number, b.id.Number) })
	for more := true; more; list, more = p.followers() {
		for _, e := range list {
			if p.submitAgain(ctx, session, e) {
				again++
			}
		}
	}
	return again
}

// followers are the entries that came while others were submitted. Without any,
// the session takes new requests from then on.
func (p *Pool) followers() (list []*entry, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list, p.behind = p.behind, nil
	p.renews = len(list) > 0
	return list, p.renews
}

// submitAgain submits what waits on a new session, and reports whether it was
// submitted before. What cannot be sent since the session ends the next one takes.
func (p *Pool) submitAgain(ctx context.Context, session Session, e *entry) (before bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.submission
	if s == nil || s.pool != p || !s.waits {
		return false
	}
	if before = s.epoch != 0; before {
		s.request.Work.Attempt++
		s.request.Work.Epoch = s.epoch
	}
	s.sent = p.clock.Now()
	s.unpark()
	s.setEnd(0)
	s.settled, s.finished, s.worker = false, false, 0
	if err := p.renew(s); err != nil {
		e.fail(err)
		return false
	}
	err := s.send(session)
	for errs.Of(err) == errs.QueueFull {
		e.mu.Unlock()
		may := waitForRoom(ctx, session)
		e.mu.Lock()
		switch {
		case e.submission != s || !may:
			return before
		case e.ended:
			e.abandon()
			return before
		}
		err = s.send(session)
	}
	if err != nil && errs.Of(err) != errs.NoWorker {
		e.fail(err)
		return false
	}
	return before
}

// renew enters a submission for the session, unless what it follows on in its sequence
// is lost.
func (p *Pool) renew(s *submission) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.epoch == 0 {
		s.epoch = p.epoch
	}
	if s.step != nil && s.step.broken {
		return sequenceLost(s.request)
	}
	return nil
}

// waitForRoom lets a session give credit, and reports whether it still may.
func waitForRoom(ctx context.Context, session Session) bool {
	lifecycle.PauseUntil(ctx, session.Done(), room)
	select {
	case <-session.Done():
		return false
	default:
		return ctx.Err() == nil
	}
}

// End parts with the session, which has ended. What it was sent and has not answered
// waits for the next one, unless nobody waits for it.
func (p *Pool) End() {
	p.mu.Lock()
	p.session, p.left = nil, p.clock.Now()
	p.mu.Unlock()
	for _, e := range p.table.all() {
		e.mu.Lock()
		switch s := e.submission; {
		case s == nil || s.pool != p:
		case e.ended:
			e.abandon()
		default:
			e.giveBack()
		}
		e.mu.Unlock()
	}
}

// EndOverdue ends what has waited too long; with all, everything.
func (p *Pool) EndOverdue(all bool) {
	if !all && p.waiting.Load() == 0 && p.ending.Load() == 0 {
		return
	}
	now := p.clock.Now()
	for _, e := range p.table.all() {
		e.mu.Lock()
		switch s := e.submission; {
		case s == nil || s.pool != p:
		case p.table.overdue(s, now):
			e.fail(errs.New(errs.InstanceCrashed, "the worker that ran the request is gone").WithModel(s.request.Model.Name))
		case all || s.waits && now.Sub(s.since) >= p.bounds.Wait:
			e.fail(p.absent(s.request))
		}
		e.mu.Unlock()
	}
}
