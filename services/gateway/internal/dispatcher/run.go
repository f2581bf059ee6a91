package dispatcher

import (
	"cmp"
	"context"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/obs"
)

const (
	// look is how often it is seen to what has waited too long.
	look = 100 * time.Millisecond
	// room is how long to wait where a new scheduler has no room for what is
	// submitted again.
	room = 10 * time.Millisecond
)

// Run follows the pool's scheduler until ctx is done. Then requests that have no
// answer fail.
func (d *Dispatcher) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return d.deps.Finder.Run(ctx) })
	group.Go(func() error { return d.sweep(ctx) })
	group.Go(func() error { return d.follow(ctx) })
	return group.Wait()
}

// follow keeps a session with whoever holds the pool.
func (d *Dispatcher) follow(ctx context.Context) error {
	d.deps.Finder.Follow(ctx, func(leadership context.Context, holder control.Holder) error {
		err := d.meet(ctx, leadership, holder)
		if err != nil && ctx.Err() == nil {
			d.deps.Log.Debug("the scheduler cannot be reached", append(obs.Err(err), zap.String("scheduler", holder.ID))...)
		}
		return err
	})
	return nil
}

// meet is one session, until it ends or the holder's leadership does, which ends the
// dialing, too: a vanished host answers nothing. The error says why it could
// not begin.
//
// A scheduler that was away while another led, and has died, may hold the pool
// again under its old epoch: it knows nothing of what the other had, and would
// have it run twice. It gets no requests, but the word that it was replaced.
func (d *Dispatcher) meet(ctx, leadership context.Context, holder control.Holder) error {
	d.mu.Lock()
	d.life++
	h := handler{d, d.life}
	d.floor = max(d.floor, holder.Epoch)
	floor := d.floor
	d.mu.Unlock()
	session, err := d.deps.Dial(leadership, holder.Address, floor, h)
	if err != nil {
		return err
	}
	if epoch := session.Scheduler().Epoch; epoch < floor {
		session.Close()
		<-session.Done()
		return errs.New(errs.PeerUnreachable, "the scheduler of epoch %d has been replaced by that of epoch %d", epoch, floor)
	}
	d.begin(leadership, session)
	select {
	case <-session.Done():
	case <-leadership.Done():
	}
	session.Close()
	<-session.Done()
	d.end(ctx, session)
	return nil
}

// begin submits on a new session what has no answer, in the order in which it
// came. What comes meanwhile goes behind it: a request of a sequence must not
// overtake one that the sequence had before.
func (d *Dispatcher) begin(ctx context.Context, session Session) {
	scheduler := session.Scheduler()
	d.mu.Lock()
	list := make([]*entry, 0, len(d.entries))
	for _, e := range d.entries {
		list = append(list, e)
	}
	d.session, d.epoch, d.floor, d.renews = session, scheduler.Epoch, max(d.floor, scheduler.Epoch), true
	d.mu.Unlock()
	slices.SortFunc(list, func(a, b *entry) int {
		return cmp.Compare(a.request.Work.Request.Number, b.request.Work.Request.Number)
	})
	d.metrics.epoch.Set(float64(scheduler.Epoch))
	again := 0
	for more := true; more; list, more = d.followers() {
		for _, e := range list {
			if d.again(ctx, session, e) {
				again++
			}
		}
	}
	d.deps.Log.Info("connected to the pool's scheduler",
		zap.String("scheduler", scheduler.ID), zap.Uint64("epoch", scheduler.Epoch), zap.Int("resubmitted", again))
}

// followers are the entries that came while others were submitted. Without any,
// the session takes new requests from then on.
func (d *Dispatcher) followers() (list []*entry, more bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	list, d.behind = d.behind, nil
	d.renews = len(list) > 0
	return list, d.renews
}

// again submits an entry on a new session, and reports whether it was submitted
// before. What cannot be sent since the session ends the next one takes.
func (d *Dispatcher) again(ctx context.Context, session Session, e *entry) bool {
	request, before := d.prepare(e)
	if request == nil {
		return false
	}
	err := d.hand(session, e, request)
	for errs.Of(err) == errs.QueueFull && waitForRoom(ctx, session) && d.wanted(e) {
		err = d.hand(session, e, request)
	}
	switch errs.Of(err) {
	case "":
		if before {
			d.metrics.resubmissions.Inc()
		}
	case errs.NoWorker, errs.QueueFull:
	default:
		d.fail(e, err)
		return false
	}
	return before
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

// wanted counts an entry's handing, unless it is over or nobody waits for it.
func (d *Dispatcher) wanted(e *entry) bool {
	d.mu.Lock()
	if d.entries[e.request.Work.Request] != e {
		d.mu.Unlock()
		return false
	}
	if e.gone {
		d.deliver(e, infer.Refuse(e.request.Work, errs.New(errs.Canceled, "")), false)
		return false
	}
	e.handing++
	d.mu.Unlock()
	return true
}

// prepare gives an entry its next attempt, if it has one, and reports whether it
// was submitted before. The request is nil if there is nothing to submit.
func (d *Dispatcher) prepare(e *entry) (r *infer.Request, before bool) {
	d.mu.Lock()
	switch {
	case d.entries[e.request.Work.Request] != e:
		d.mu.Unlock()
		return nil, false
	case e.gone:
		d.deliver(e, infer.Refuse(e.request.Work, errs.New(errs.Canceled, "")), false)
		return nil, false
	case e.broken:
		d.deliver(e, infer.Refuse(e.request.Work, sequenceLost(e.request)), false)
		return nil, false
	}
	defer d.mu.Unlock()
	if before = e.tried; before {
		e.attempt++
	}
	d.unpark(e)
	d.setEnd(e, 0)
	e.tried, e.settled, e.worker = true, false, 0
	e.handing++
	copied := *e.request
	copied.Work.Attempt, copied.Work.Epoch = e.attempt, e.epoch
	if e.epoch == 0 {
		e.epoch = d.epoch
	}
	return &copied, before
}

// end parts with a session. What it was sent and has not answered waits for the
// next one, as it is in the table.
func (d *Dispatcher) end(ctx context.Context, session Session) {
	d.mu.Lock()
	d.session, d.left = nil, d.deps.Clock.Now()
	var over []*entry
	for _, e := range d.entries {
		if e.gone {
			over = append(over, e)
			continue
		}
		d.park(e)
	}
	waiting := d.waiting.requests
	d.mu.Unlock()
	for _, e := range over {
		d.fail(e, errs.New(errs.Canceled, ""))
	}
	d.metrics.epoch.Set(0)
	level := zap.WarnLevel
	if ctx.Err() != nil { // the gateway stops
		level = zap.InfoLevel
	}
	d.deps.Log.Log(level, "the session with the scheduler has ended", append(obs.Err(session.Err()), zap.Int("waiting", waiting))...)
}

// fail ends an entry with an error.
func (d *Dispatcher) fail(e *entry, err error) {
	d.mu.Lock()
	if d.entries[e.request.Work.Request] != e {
		d.mu.Unlock()
		return
	}
	d.deliver(e, infer.Refuse(e.request.Work, err), false)
}

// sweep ends what has waited too long, and at last everything.
func (d *Dispatcher) sweep(ctx context.Context) error {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			d.endOverdue(false)
		case <-ctx.Done():
			d.endOverdue(true)
			return nil
		}
	}
}

func (d *Dispatcher) endOverdue(all bool) {
	now := d.deps.Clock.Now()
	d.mu.Lock()
	var absent, crashed []*entry
	if all || d.waiting.requests > 0 || d.ending > 0 {
		for _, e := range d.entries {
			switch {
			case e.end != 0 && now >= e.end:
				crashed = append(crashed, e)
			case all || e.waits && now.Sub(e.since) >= d.config.Patience:
				absent = append(absent, e)
			}
		}
	}
	d.mu.Unlock()
	for _, e := range absent {
		d.fail(e, d.absent(e.request))
	}
	for _, e := range crashed {
		d.fail(e, errs.New(errs.InstanceCrashed, "the worker that ran the request is gone").WithModel(e.request.Model.Name))
	}
}
