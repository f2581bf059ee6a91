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

// room is how long to wait before trying again when a new scheduler has no credit for resubmitted requests.
const room = 10 * time.Millisecond

// Session is a connection to a scheduler in another process. Its methods do not block.
type Session interface {
	// Submit sends a request, which the caller still owns. The error is errs.NoWorker if the session has ended,
	// and errs.QueueFull if the scheduler has no credit now.
	Submit(*infer.Request) error
	Cancel(infer.RequestID)
	// CacheUsed reports what the response cache did for a request.
	CacheUsed(infer.CacheUse)
	// EnsembleEnded reports the end of a request for an ensemble.
	EnsembleEnded(infer.EnsembleEnd)
	// Done returns a channel that is closed when the session has ended. The session then makes no more calls to
	// the pool.
	Done() <-chan struct{}
}

// Bounds limit what waits while there is no scheduler.
type Bounds struct {
	MaxRequests int
	MaxBytes    int64
	// Wait is how long a request waits for a scheduler.
	Wait time.Duration
	// Grace is how long to wait for an answer to start arriving that was sent, or whose worker is lost or has
	// dropped answers.
	Grace time.Duration
}

// DefaultBounds are long enough for a failover.
func DefaultBounds() Bounds {
	return Bounds{MaxRequests: 1 << 16, MaxBytes: 1 << 30, Wait: 10 * time.Second, Grace: 5 * time.Second}
}

// Lend returns tensors in the form in which messages carry them: large ones are exported by name, and end ends
// their lease. end is nil if nothing was exported.
type Lend func(tensors []infer.Tensor, holder uint64) (carried []infer.Tensor, end func())

// Pool passes the table's requests for the models of one pool to its scheduler. It is the handler of at most
// one session at a time. It is safe for concurrent use, except for Begin and End.
type Pool struct {
	table  *Table
	name   string
	bounds Bounds
	clock  mono.Clock
	lend   Lend

	mu      sync.Mutex
	session Session   // nil while there is none; guarded by mu
	epoch   uint64    // of the session's scheduler; guarded by mu
	drains  bool      // the scheduler accepts no new requests, which it may say before Begin; guarded by mu
	renews  bool      // unanswered requests are being resubmitted to it; guarded by mu
	behind  []*entry  // requests that arrived meanwhile and follow those; guarded by mu
	left    mono.Time // when the last session ended; 0 means never; guarded by mu
	// sequences are the submissions of each sequence, in order of arrival; guarded by mu.
	sequences map[sequenceName][]*step

	waiting, waitingBytes atomic.Int64 // submissions without a scheduler, and the bytes of their inputs
	ending                atomic.Int64 // submissions with an end set
}

// NewPool makes a pool of the table. Its requests wait until Begin. lend may be nil, which exports nothing.
func (t *Table) NewPool(name string, b Bounds, clock mono.Clock, lend Lend) *Pool {
	if lend == nil {
		lend = func(inputs []infer.Tensor, _ uint64) ([]infer.Tensor, func()) { return inputs, nil }
	}
	return &Pool{table: t, name: name, bounds: b, clock: clock, lend: lend, sequences: make(map[sequenceName][]*step)}
}

// Name returns the pool's name.
func (p *Pool) Name() string { return p.name }

// Waiting returns the number of requests that wait for a scheduler.
func (p *Pool) Waiting() int { return int(p.waiting.Load()) }

// Reachable reports whether requests can be expected to reach a scheduler: there is a session, or the last one
// ended so recently that another scheduler may take over before the waiting requests time out.
func (p *Pool) Reachable() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.session != nil || p.left != 0 && p.clock.Now().Sub(p.left) < p.bounds.Wait/2
}

// CacheUsed reports to the scheduler what the response cache did for a request. While there is no scheduler,
// nobody counts it.
func (p *Pool) CacheUsed(u infer.CacheUse) {
	p.mu.Lock()
	session := p.session
	p.mu.Unlock()
	if session != nil {
		session.CacheUsed(u)
	}
}

// EnsembleEnded reports to the scheduler the end of a request for an ensemble. While there is no scheduler,
// nobody counts it.
func (p *Pool) EnsembleEnded(e infer.EnsembleEnd) {
	p.mu.Lock()
	session := p.session
	p.mu.Unlock()
	if session != nil {
		session.EnsembleEnded(e)
	}
}

// Submit takes over a request that is in the table. On an error the caller still owns it.
func (p *Pool) Submit(r *infer.Request) error {
	e := p.table.find(r.Work.Request)
	if e == nil { // its client has disconnected
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
	if err == nil || errs.Of(err) == errs.NoWorker { // if the session has ended, the next one gets the request
		return nil
	}
	e.withdraw()
	return err
}

// admit enters a submission and returns the session for it, or nil if it must wait for one.
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

// Expect is called before a session is opened with the pool as its handler.
func (p *Pool) Expect() { p.setDrains(false) }

// Draining makes new requests wait for the next session.
func (p *Pool) Draining() { p.setDrains(true) }

func (p *Pool) setDrains(drains bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drains = drains
}

// Begin submits all unanswered requests to the scheduler of the given epoch, in their order of arrival, and
// returns how many of them had been submitted before. Requests that arrive meanwhile follow them: a request of
// a sequence must not overtake an earlier one. Begin waits for credit as long as ctx allows.
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

// followers returns the entries that arrived while others were being submitted. If there are none, the session
// accepts new requests from then on.
func (p *Pool) followers() (list []*entry, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list, p.behind = p.behind, nil
	p.renews = len(list) > 0
	return list, p.renews
}

// submitAgain submits a waiting request on a new session, and reports whether it had been submitted before. If
// the session ends first, the next one takes the request.
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

// renew enters a submission for the session, unless an earlier request of its sequence is lost.
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

// waitForRoom waits for the session to grant credit, and reports whether it still can.
func waitForRoom(ctx context.Context, session Session) bool {
	lifecycle.PauseUntil(ctx, session.Done(), room)
	select {
	case <-session.Done():
		return false
	default:
		return ctx.Err() == nil
	}
}

// End handles the end of the session. Requests that were sent and not answered wait for the next session,
// unless nobody waits for them.
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

// EndOverdue ends the requests that have waited too long; with all, every one.
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
