package python

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/cores"
)

// instance keeps a stub running. It is safe for concurrent use.
type instance struct {
	model *model
	spec  backend.InstanceSpec
	log   *zap.Logger
	cores cores.Set // of its stubs
	// serial says that the stubs run their batches one after another.
	serial bool

	closing context.Context //nolint:containedctx // done by Close and Stop
	close   context.CancelFunc
	given   context.Context //nolint:containedctx // done by Stop
	giveUp  context.CancelFunc
	ended   chan struct{} // closed when nothing is kept running any more

	telling sync.Mutex // held while tell is called, before mu

	mu        sync.Mutex
	live      *session                // nil while there is none; guarded by mu
	condition backend.Condition       // why there is none, or it is not ready; guarded by mu
	tell      func(backend.Condition) // of Watch; guarded by mu
}

func newInstance(ctx context.Context, m *model, spec backend.InstanceSpec) (*instance, error) {
	in := &instance{model: m, spec: spec, log: m.log(spec), ended: make(chan struct{})}
	var err error
	if in.cores, err = m.takeCores(spec); err != nil {
		return nil, err
	}
	in.given, in.giveUp = context.WithCancel(context.Background())
	in.closing, in.close = context.WithCancel(in.given)
	s, err := in.begin(ctx)
	if err != nil {
		in.giveUp()
		m.giveCores(in.cores)
		return nil, err
	}
	in.serial = s.serial
	in.set(s, nil)
	go in.keep(s)
	return in, nil
}

// Credits is 1: what a model may do at a time is its own affair.
func (in *instance) Credits() int { return 1 }

// Pipelined is 1, so that the stub finds its next batch when it ends one. An event loop
// would begin it at once.
func (in *instance) Pipelined() int {
	if in.serial {
		return 1
	}
	return 0
}

// The pause before a stub is started again: it doubles while stubs end soon.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 30 * time.Second
	// health is how long one has to live so that the pause is the first again.
	health = 30 * time.Second
)

// keep starts a stub after each that has ended, until the instance is closed.
func (in *instance) keep(s *session) {
	defer close(in.ended)
	defer in.model.giveCores(in.cores)
	defer in.giveUp()
	pause := firstPause
	for s != nil {
		began := time.Now()
		if !in.attend(s) {
			s.finalize()
			return
		}
		in.set(nil, in.unhealthy(s.cause().Error()))
		_, lines := s.stub.Cause()
		in.log.Error("stub ended", zap.String("cause", s.cause().Error()), zap.Strings("last_lines", lines))
		if time.Since(began) > health {
			pause = firstPause
		}
		if s, pause = in.restart(pause); s != nil {
			in.set(s, nil)
		}
	}
}

// restart starts a stub after a pause, again and again until there is one; nil says
// that the instance is closed. It also returns the next pause.
func (in *instance) restart(pause time.Duration) (*session, time.Duration) {
	for {
		in.log.Info("stub is started again", zap.Duration("pause", pause))
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-in.closing.Done():
			timer.Stop()
			return nil, pause
		}
		pause = min(2*pause, lastPause)
		s, err := in.begin(in.closing)
		if err == nil {
			return s, pause
		}
		if in.closing.Err() != nil {
			return nil, pause
		}
		in.set(nil, err)
		in.log.Error("stub not started", obs.Err(err)...)
	}
}

// set sets the stub that takes batches, or why there is none. That is told before, so
// that no batch comes where none is.
func (in *instance) set(s *session, away error) {
	in.telling.Lock()
	defer in.telling.Unlock()
	in.mu.Lock()
	tell := in.tell
	in.mu.Unlock()
	c := backend.Condition{Away: away}
	if tell != nil && s == nil {
		tell(c)
	}
	in.mu.Lock()
	in.live, in.condition = s, c
	in.mu.Unlock()
	if tell != nil && s != nil {
		tell(c)
	}
}

// gone takes in that a session is about to fail what it has.
func (in *instance) gone(s *session) {
	if live, _ := in.session(); live == s {
		in.set(nil, in.unhealthy("it has ended"))
	}
}

// promptBytes is how many bytes of inputs are copied in the goroutine that
// brings a batch.
const promptBytes = 64 << 10

// TryExecute gives the batch to the stub, if there is one and its inputs are few bytes.
func (in *instance) TryExecute(b backend.Batch) bool {
	n := int64(0)
	for _, r := range b.Requests() {
		for i := range r.Inputs {
			n += r.Inputs[i].Data.Length
		}
	}
	if n > promptBytes {
		return false
	}
	s, _ := in.session()
	return s != nil && s.execute(b)
}

func (in *instance) session() (s *session, away error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.live, in.condition.Away
}

// Watch sets what is told that there is no stub, or that the model is not ready, and
// that this has changed.
func (in *instance) Watch(tell func(backend.Condition)) {
	in.telling.Lock()
	defer in.telling.Unlock()
	in.mu.Lock()
	in.tell = tell
	c := in.condition
	in.mu.Unlock()
	if tell != nil && c.Cause() != nil {
		tell(c)
	}
}

// Execute gives the batch to the stub, or back where there is none, which the scheduler
// knows by then.
func (in *instance) Execute(b backend.Batch) {
	if s, _ := in.session(); s == nil || !s.execute(b) {
		b.GiveBack(in.notBegun())
	}
}

// refuse ends a batch that cannot be sent.
func (in *instance) refuse(b backend.Batch, err error) {
	for i := range b.Requests() {
		b.Respond(i, &infer.Response{Final: true, Err: err})
	}
	b.Done()
}

// notBegun says why a batch that no stub has begun is given back.
func (in *instance) notBegun() error {
	return errs.New(errs.InstanceAway, "instance %s is away: its process ended before it began the batch", in.spec.Name).WithModel(in.model.version.Ref.Name)
}

// unhealthy is Triton's text for what a stub does not answer any more.
func (in *instance) unhealthy(how string) error {
	return errs.New(errs.StubUnhealthy, "Stub process '%s' is not healthy: %s", in.spec.Name, how).WithModel(in.model.version.Ref.Name)
}

// Stop kills the stub: what it has begun fails, and a model that is being finalized
// is no longer waited for.
func (in *instance) Stop() bool {
	in.giveUp()
	return true
}

// Close has the model finalized, and ends the stub.
func (in *instance) Close() error {
	in.close()
	<-in.ended
	return nil
}
