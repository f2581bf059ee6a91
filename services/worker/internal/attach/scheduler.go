package attach

import (
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

var _ infer.Scheduler = (*Attachment)(nil)

// Attach introduces the worker, once. What it holds is known here.
func (a *Attachment) Attach(worker uint64, _ infer.Held, e infer.Executor) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.worker, a.executor = worker, e
	if !a.attached {
		a.attached = true
		close(a.came)
	}
}

// Detach ends the session: a worker that has closed its instances has nothing
// to say any more.
func (a *Attachment) Detach(uint64) {
	a.mu.Lock()
	session := a.session
	a.detached = true
	clear(a.instances)
	a.mu.Unlock()
	if session != nil {
		session.Close()
	}
}

// Grant offers an instance.
func (a *Attachment) Grant(g infer.Grant) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.instances[g.Instance] = &instance{grant: g}
	if a.session != nil {
		a.session.Grant(g) // does not block
	}
}

// Retire asks the scheduler that is there to give the instance no more orders;
// without one, none will come.
func (a *Attachment) Retire(id infer.InstanceID) {
	a.mu.Lock()
	session, executor, in := a.session, a.executor, a.instances[id]
	switch {
	case in == nil || session == nil:
		delete(a.instances, id)
		a.mu.Unlock()
		executor.Retired(id)
		return
	default:
		in.retiring = true
	}
	a.mu.Unlock()
	session.Retire(id)
}

// Complete ends an order. Its requests have begun from now on. Where the present
// session does not know of the order there is nobody to tell: the next hello
// does.
func (a *Attachment) Complete(c *infer.Completion) {
	a.mu.Lock()
	o := a.open[key{c.Epoch, c.Order}]
	if o == nil {
		a.mu.Unlock()
		return
	}
	delete(a.open, key{c.Epoch, c.Order})
	for _, w := range o.Requests {
		a.begun.Add(w.Request)
	}
	session := a.session
	switch {
	case o.life != a.life:
		session = nil
	case session == nil:
		// The grants of the session to come have the credit.
		a.late = append(a.late, func(s Session) {
			c.Credits = 0
			s.Complete(c)
		})
	}
	a.mu.Unlock()
	if session != nil {
		session.Complete(c)
	}
}

// Refuse gives an order back that has not begun. A scheduler that did not give
// it on the present stream learns of it by the next hello, which is made to come
// soon. The requests that the order does not name any more have been answered.
func (a *Attachment) Refuse(o *infer.Order, err error) {
	a.mu.Lock()
	k := key{o.Epoch, o.ID}
	known, session := a.open[k], a.session
	delete(a.open, k)
	if known != nil {
		a.keepAnswered(known, o)
	}
	if session == nil && known != nil && known.life == a.life {
		a.late = append(a.late, Session.Close)
	}
	a.mu.Unlock()
	switch {
	case session != nil && known != nil && known.came == a.life:
		session.Refuse(o, err)
		return
	case session != nil:
		session.Close()
	}
	for _, r := range o.Requests { // the scheduler has its own
		r.Release()
	}
}

// keepAnswered remembers the requests of an order that are not among those given
// back. The caller holds mu.
func (a *Attachment) keepAnswered(known *order, back *infer.Order) {
	for _, w := range known.Requests {
		if !slices.ContainsFunc(back.Requests, func(r *infer.Request) bool { return r.Work.Request == w.Request }) {
			a.begun.Add(w.Request)
		}
	}
}

// receiver takes what comes on one session.
type receiver struct {
	attachment *Attachment
	life       uint64
}

// Execute opens an order and passes it on, unless it is that of a scheduler that
// has been replaced.
func (r *receiver) Execute(o *infer.Order) {
	a := r.attachment
	opened := &order{Running: infer.Running{Order: o.ID, Epoch: o.Epoch, Instance: o.Instance}, life: r.life, came: r.life}
	for _, request := range o.Requests {
		opened.Requests, opened.Rows = append(opened.Requests, request.Work), append(opened.Rows, request.Rows)
	}
	a.mu.Lock()
	deposed := o.Epoch < a.floor
	a.open[key{o.Epoch, o.ID}] = opened
	executor := a.executor
	a.mu.Unlock()
	if deposed {
		a.Refuse(o, errs.New(errs.SchedulerDeposed, "the scheduler of epoch %d has been replaced", o.Epoch))
		return
	}
	executor.Execute(o)
}

// Cancel passes a cancellation on.
func (r *receiver) Cancel(order uint64, request infer.RequestID) {
	r.attachment.present().Cancel(order, request)
}

// Retired passes the scheduler's word on.
func (r *receiver) Retired(id infer.InstanceID) {
	a := r.attachment
	a.mu.Lock()
	delete(a.instances, id)
	a.mu.Unlock()
	a.present().Retired(id)
}

func (a *Attachment) present() infer.Executor {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.executor
}
