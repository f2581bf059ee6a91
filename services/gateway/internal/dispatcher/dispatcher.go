package dispatcher

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/schedule"
)

// Session is one connection to a scheduler: [schedule.GatewaySession].
type Session interface {
	// Submit sends a request, which stays the caller's.
	Submit(*infer.Request) error
	Cancel(infer.RequestID)
	Close()
	// Done is closed when the session has ended. Its handler is not called any
	// more then.
	Done() <-chan struct{}
	Err() error
	Scheduler() schedule.Scheduler
}

var _ Session = (*schedule.GatewaySession)(nil)

// Config bounds what waits while no scheduler is there.
type Config struct {
	MaxRequests int
	MaxBytes    int64
	// Patience is for how long a request waits for a scheduler.
	Patience time.Duration
	// Grace is for how long an answer is awaited that was sent, or whose worker
	// is gone.
	Grace time.Duration
}

// Default gives bounds that cover a failover.
func Default() Config {
	return Config{MaxRequests: 1 << 16, MaxBytes: 1 << 30, Patience: 10 * time.Second, Grace: 5 * time.Second}
}

// Deps are what a Dispatcher works with.
type Deps struct {
	// Finder knows the scheduler that holds the pool. The dispatcher runs it.
	Finder *control.Finder
	// Dial connects to a scheduler, which it tells the highest epoch that the
	// dispatcher has met, and returns when it takes requests.
	Dial func(ctx context.Context, address string, met uint64, h schedule.GatewayHandler) (Session, error)
	// To takes the answers that count.
	To    infer.Responder
	Clock mono.Clock
	// Pushed is told on which worker a request will run; Forget that nobody
	// reads its inputs any more. Both may be nil.
	Pushed  func(w infer.Work, worker uint64, r *infer.Request)
	Forget  func(infer.RequestID)
	Metrics prometheus.Registerer
	Log     *zap.Logger
}

// Dispatcher is a gateway's way to one pool. It is safe for concurrent use.
type Dispatcher struct {
	config  Config
	deps    Deps
	metrics metrics

	mu      sync.Mutex
	entries map[infer.RequestID]*entry // without their final answer; guarded by mu
	session Session                    // nil while there is none; guarded by mu
	epoch   uint64                     // of its scheduler; guarded by mu
	floor   uint64                     // the highest epoch met; guarded by mu
	life    uint64                     // counts the sessions; guarded by mu
	drained uint64                     // the session that takes nothing new; guarded by mu
	renews  bool                       // the session is being submitted what has no answer; guarded by mu
	behind  []*entry                   // came meanwhile, and go behind it; guarded by mu
	// sequences are the entries of each sequence, in the order in which they came;
	// guarded by mu.
	sequences map[sequenceName][]*entry
	left      mono.Time // when the last session ended; 0 is never; guarded by mu
	waiting   load      // not with a scheduler; guarded by mu
	ending    int       // entries with an end set; guarded by mu
}

// load is how much waits.
type load struct {
	requests int
	bytes    int64
}

func (l *load) add(r *infer.Request, sign int) {
	l.requests += sign
	l.bytes += int64(sign) * r.InputBytes()
}

// entry is a request without its final answer. Its fields are guarded by the
// dispatcher's lock.
type entry struct {
	request *infer.Request  // unchanged; its references are the entry's
	attempt uint32          // the present one
	epoch   uint64          // of the first scheduler that it was submitted to
	tried   bool            // has been submitted
	waits   bool            // for a scheduler
	since   mono.Time       // it waits
	settled bool            // a worker has it: every answer counts
	gone    bool            // nobody waits for it
	broken  bool            // one before it in its sequence has failed
	handing int             // sessions that it is being submitted to
	over    bool            // it has ended, and the last of those releases it
	late    *infer.Response // a failure of an earlier attempt
	worker  uint64          // where it runs, as far as is known
	end     mono.Time       // when it is given up; 0 is never
}

// New makes a dispatcher whose requests wait until [Dispatcher.Run] has found a
// scheduler.
func New(c Config, deps Deps) *Dispatcher {
	if deps.Pushed == nil {
		deps.Pushed = func(infer.Work, uint64, *infer.Request) {}
	}
	if deps.Forget == nil {
		deps.Forget = func(infer.RequestID) {}
	}
	d := &Dispatcher{config: c, deps: deps, entries: make(map[infer.RequestID]*entry), sequences: make(map[sequenceName][]*entry)}
	d.metrics = newMetrics(deps.Metrics, d.waitingRequests)
	return d
}

func (d *Dispatcher) waitingRequests() float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return float64(d.waiting.requests)
}

// Reachable reports whether requests can be expected to get to a scheduler: there
// is a session, or the last one has ended so lately that another scheduler may
// yet take the pool over before what waits has waited too long.
func (d *Dispatcher) Reachable() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.session != nil || d.left != 0 && d.deps.Clock.Now().Sub(d.left) < d.config.Patience/2
}

// Submit takes a request over, which is answered through To. On an error the
// caller still owns it.
func (d *Dispatcher) Submit(r *infer.Request) error {
	e := &entry{request: r, attempt: r.Work.Attempt}
	d.mu.Lock()
	session := d.open()
	if session == nil || d.renews {
		defer d.mu.Unlock()
		err := d.wait(e)
		if err == nil && session != nil {
			d.behind = append(d.behind, e)
		}
		return err
	}
	e.tried, e.epoch, e.handing = true, d.epoch, 1
	d.add(e)
	d.mu.Unlock()
	copied := *r // the entry's may be submitted again meanwhile
	err := d.hand(session, e, &copied)
	if err == nil {
		return nil
	}
	d.mu.Lock()
	switch {
	case d.entries[copied.Work.Request] != e: // somebody has ended it
	case errs.Of(err) == errs.NoWorker: // the session has ended, and the request is submitted on the next
	case e.attempt != copied.Work.Attempt: // that has been done
	default:
		d.remove(e)
		d.mu.Unlock()
		d.deps.Forget(copied.Work.Request)
		return err
	}
	d.mu.Unlock()
	return nil
}

// hand submits a copy of an entry's request, whose handing the caller has
// counted. Whoever ends the entry meanwhile leaves its inputs, which are read
// here, to be released here.
func (d *Dispatcher) hand(session Session, e *entry, r *infer.Request) error {
	err := session.Submit(r)
	d.mu.Lock()
	e.handing--
	over := e.over && e.handing == 0
	d.mu.Unlock()
	if over {
		d.free(e)
	}
	return err
}

// open is the session for new requests; nil if there is none. The caller holds
// mu.
func (d *Dispatcher) open() Session {
	if d.drained == d.life {
		return nil
	}
	return d.session
}

// wait keeps a request until a scheduler is there. The caller holds mu.
func (d *Dispatcher) wait(e *entry) error {
	if d.waiting.requests >= d.config.MaxRequests || d.waiting.requests > 0 && d.waiting.bytes+e.request.InputBytes() > d.config.MaxBytes {
		return d.absent(e.request)
	}
	d.add(e)
	d.park(e)
	return nil
}

func (d *Dispatcher) absent(r *infer.Request) *errs.Error {
	return errs.New(errs.NoScheduler, "no scheduler holds the pool %q", strings.TrimPrefix(d.deps.Finder.Role(), control.PoolRole(""))).WithModel(r.Model.Name)
}

// park has an entry wait for a scheduler. The caller holds mu.
func (d *Dispatcher) park(e *entry) {
	if !e.waits {
		e.waits, e.since = true, d.deps.Clock.Now()
		d.waiting.add(e.request, 1)
	}
}

// add has the dispatcher know an entry. The caller holds mu.
func (d *Dispatcher) add(e *entry) {
	d.entries[e.request.Work.Request] = e
	d.joinSequence(e)
}

// remove ends the dispatcher's knowledge of an entry, and reports whether its
// request is the caller's to release. The caller holds mu.
func (d *Dispatcher) remove(e *entry) (own bool) {
	d.unpark(e)
	d.setEnd(e, 0)
	delete(d.entries, e.request.Work.Request)
	d.leaveSequence(e)
	e.over = e.handing > 0
	return !e.over
}

func (d *Dispatcher) unpark(e *entry) {
	if e.waits {
		e.waits = false
		d.waiting.add(e.request, -1)
	}
}

// setEnd sets when an entry is given up; 0 is never. The caller holds mu.
func (d *Dispatcher) setEnd(e *entry, at mono.Time) {
	if e.end != 0 {
		d.ending--
	}
	if at != 0 {
		d.ending++
	}
	e.end = at
}

// Cancel says that nobody waits for a request any more. What a scheduler or a
// worker has of it they still finish.
func (d *Dispatcher) Cancel(id infer.RequestID) {
	d.mu.Lock()
	e := d.entries[id]
	if e == nil {
		d.mu.Unlock()
		return
	}
	e.gone = true
	d.breakSequence(e)
	session := d.session
	if !e.waits && session != nil {
		d.mu.Unlock()
		session.Cancel(id)
		return
	}
	own := d.remove(e)
	d.mu.Unlock()
	d.letGo(e, own)
}

// letGo gives up what a removed entry holds: its request, if that is the
// caller's.
func (d *Dispatcher) letGo(e *entry, own bool) {
	if e.late != nil {
		e.late.Release()
	}
	if own {
		d.free(e)
	}
}

// free releases the request of an entry that is over.
func (d *Dispatcher) free(e *entry) {
	e.request.Release()
	d.deps.Forget(e.request.Work.Request)
}
