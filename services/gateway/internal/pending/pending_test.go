package pending_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/pending"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const origin = 42

// memory counts the buffers of responses that have not been released.
type memory struct{ held atomic.Int64 }

// response makes a response with one output that counts.
func (m *memory) response(w infer.Work, final bool) *infer.Response {
	m.held.Add(1)
	b := tensor.Wrap(make([]byte, 4), false, func(*tensor.Buffer) { m.held.Add(-1) })
	return &infer.Response{Work: w, Final: final, Outputs: []infer.Tensor{{Name: "X", Data: tensor.InBuffer(b, 0, 4)}}}
}

// collector keeps what it is handed.
type collector struct{ got []*infer.Response }

func (c *collector) Respond(r *infer.Response) { c.got = append(c.got, r) }

// opened puts one request into a table.
func opened(t *pending.Table, next infer.Responder) infer.Work {
	w := infer.Work{Request: t.NextID(), Attempt: 2}
	t.Open(w, next)
	return w
}

func TestIdentitiesAreTheTablesOwn(t *testing.T) {
	table := pending.New(origin)
	first, second := table.NextID(), table.NextID()
	want := []infer.RequestID{{Origin: origin, Number: 1}, {Origin: origin, Number: 2}}
	if d := cmp.Diff(want, []infer.RequestID{first, second}); d != "" {
		t.Error(d)
	}
}

func TestResponsesPassUntilTheFinalOne(t *testing.T) {
	var m memory
	table, next := pending.New(origin), &collector{}
	w := opened(table, next)
	sent := []*infer.Response{m.response(w, false), m.response(w, false), m.response(w, true)}
	for i, r := range sent {
		if table.InFlight() != 1 {
			t.Errorf("before response %d: %d in flight", i, table.InFlight())
		}
		if !table.Finish(r) {
			t.Errorf("response %d was not taken", i)
		}
	}
	late := []*infer.Response{m.response(w, false), m.response(w, true), infer.Fail(w, errs.New(errs.Canceled, ""))}
	for i, r := range late {
		if table.Finish(r) {
			t.Errorf("late response %d was taken", i)
		}
	}
	if len(next.got) != 3 || next.got[0] != sent[0] || next.got[1] != sent[1] || next.got[2] != sent[2] {
		t.Errorf("handed on %v, want %v", next.got, sent)
	}
	if m.held.Load() != 3 || table.InFlight() != 0 {
		t.Errorf("%d outputs held, %d in flight: want the 3 handed on, and none", m.held.Load(), table.InFlight())
	}
}

func TestAnswersToOtherWorkAreReleased(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*infer.Work)
	}{
		{"an earlier attempt", func(w *infer.Work) { w.Attempt = 1 }},
		{"a later attempt", func(w *infer.Work) { w.Attempt = 3 }},
		{"another gateway", func(w *infer.Work) { w.Request.Origin++ }},
		{"another request", func(w *infer.Work) { w.Request.Number++ }},
		{"a request in the same shard", func(w *infer.Work) { w.Request.Number += 64 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var m memory
			table, next := pending.New(origin), &collector{}
			w := opened(table, next)
			c.change(&w)
			if table.Finish(m.response(w, true)) || len(next.got) != 0 {
				t.Error("it was taken for an answer")
			}
			if m.held.Load() != 0 || table.InFlight() != 1 {
				t.Errorf("%d outputs held, %d in flight: want none, and the request", m.held.Load(), table.InFlight())
			}
		})
	}
}

func TestEpochAndRevisionDoNotDecide(t *testing.T) {
	table, next := pending.New(origin), &collector{}
	w := opened(table, next)
	w.Epoch, w.Revision = 9, 9
	table.Respond(&infer.Response{Work: w, Final: true})
	if len(next.got) != 1 {
		t.Error("the answer was not taken: epoch and revision are others' to check")
	}
}

// Whatever answers at the same time, each request has one final answer and
// everything else is released.
func TestOneFinalAnswerUnderRaces(t *testing.T) {
	var m memory
	table := pending.New(origin)
	const requests, rivals = 200, 4
	var all sync.WaitGroup
	for range requests {
		waiter := new(pending.Responses)
		waiter.Open()
		w := opened(table, waiter)
		var taken atomic.Int64
		var racing sync.WaitGroup
		for i := range rivals {
			racing.Go(func() {
				r := infer.Fail(w, errs.New(errs.Canceled, ""))
				if i%2 == 0 {
					r = m.response(w, true)
				}
				if table.Finish(r) {
					taken.Add(1)
				}
			})
		}
		all.Go(func() {
			p := waiter.Next(context.Background())
			racing.Wait()
			if taken.Load() != 1 {
				t.Errorf("%d final answers were taken", taken.Load())
			}
			p.Release()
		})
	}
	all.Wait()
	if m.held.Load() != 0 || table.InFlight() != 0 {
		t.Errorf("%d outputs held, %d in flight, want none", m.held.Load(), table.InFlight())
	}
}

func TestDrainWaitsForTheLastAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := pending.New(origin)
		first, second := opened(table, &collector{}), opened(table, &collector{})
		var done atomic.Int64
		for range 2 { // whoever drains
			go func() {
				if err := table.Drain(t.Context()); err != nil {
					t.Error(err)
				}
				done.Add(1)
			}()
		}
		table.Finish(&infer.Response{Work: first, Final: true})
		table.Finish(&infer.Response{Work: second})
		synctest.Wait()
		if done.Load() != 0 {
			t.Fatal("drained with a request in flight")
		}
		table.Finish(&infer.Response{Work: second, Final: true})
		synctest.Wait()
		if done.Load() != 2 {
			t.Error("not drained after the last answer")
		}
	})
}

func TestDrainOfAnEmptyTableIsOver(t *testing.T) {
	table := pending.New(origin)
	for range 2 {
		if err := table.Drain(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestDrainEndsWithItsContext(t *testing.T) {
	table := pending.New(origin)
	opened(table, &collector{})
	impatient := errors.New("impatient")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(impatient)
	if err := table.Drain(ctx); !errors.Is(err, impatient) {
		t.Errorf("got %v, want the cause", err)
	}
}

func TestResponsesAreReadInOrder(t *testing.T) {
	var q pending.Responses
	for round := range 3 { // it is used again
		q.Open()
		for i := range 3 {
			q.Respond(&infer.Response{Index: uint32(10*round + i), Final: i == 2})
			if i == 1 {
				if p := q.Next(t.Context()); p.Index != uint32(10*round) {
					t.Errorf("round %d begins with response %d", round, p.Index)
				}
			}
		}
		for i := 1; i < 3; i++ {
			if p := q.Next(t.Context()); p.Index != uint32(10*round+i) || p.Final != (i == 2) {
				t.Errorf("round %d: got response %d, final %t, at %d", round, p.Index, p.Final, i)
			}
		}
	}
}

func TestReadingEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var q pending.Responses
	q.Open()
	for range 20 { // a response that is there counts, whatever the context
		if p := q.Next(ctx); p != nil {
			t.Fatalf("got %v before any response", p)
		}
		q.Respond(new(infer.Response))
		if p := q.Next(ctx); p == nil {
			t.Fatal("got nothing of a response that is there")
		}
	}
}

// allowance is a budget for so many bytes of responses.
type allowance struct{ left int64 }

func (a *allowance) Charge(n int64, _ bool) error {
	if n > a.left {
		return errs.New(errs.MemoryFull, "full")
	}
	a.left -= n
	return nil
}

func TestResponsesBeyondTheBudgetBecomeItsError(t *testing.T) {
	var m memory
	q := pending.Responses{Budget: &allowance{left: 6}}
	q.Open()
	q.Respond(m.response(infer.Work{}, false)) // of 4 bytes
	q.Respond(m.response(infer.Work{Attempt: 3}, true))
	q.Next(t.Context()).Release()
	p := q.Next(t.Context())
	if errs.Of(p.Err) != errs.MemoryFull || !p.Final || p.Work.Attempt != 3 || m.held.Load() != 0 {
		t.Errorf("got %+v with %d outputs held", p, m.held.Load())
	}
}
