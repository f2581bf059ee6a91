package requests_test

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
	"github.com/nereid-serving/nereid/services/gateway/internal/requests"
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

// collector keeps the responses that it receives.
type collector struct{ got []*infer.Response }

func (c *collector) Receive(r *infer.Response) bool {
	c.got = append(c.got, r)
	return r.Final
}

// opened puts one request into a table.
func opened(t *requests.Table, next requests.Receiver) infer.Work {
	w := infer.Work{Request: t.NextID(), Attempt: 2}
	t.Open(w, &infer.ModelRef{Name: "m"}, next)
	return w
}

func TestIdentitiesAreTheTablesOwn(t *testing.T) {
	table := requests.New(origin)
	first, second := table.NextID(), table.NextID()
	want := []infer.RequestID{{Origin: origin, Number: 1}, {Origin: origin, Number: 2}}
	if d := cmp.Diff(want, []infer.RequestID{first, second}); d != "" {
		t.Error(d)
	}
}

func TestResponsesPassUntilTheFinalOne(t *testing.T) {
	var m memory
	table, next := requests.New(origin), &collector{}
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
			table, next := requests.New(origin), &collector{}
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
	table, next := requests.New(origin), &collector{}
	w := opened(table, next)
	w.Epoch, w.Revision = 9, 9
	table.Respond(&infer.Response{Work: w, Final: true})
	if len(next.got) != 1 {
		t.Error("the answer was not taken: epoch and revision are others' to check")
	}
}

// However many answers arrive at the same time, each request gets exactly one final answer and everything else
// is released.
func TestOneFinalAnswerUnderRaces(t *testing.T) {
	var m memory
	table := requests.New(origin)
	const count, rivals = 200, 4
	var all sync.WaitGroup
	for range count {
		waiter := new(requests.Responses)
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
		table := requests.New(origin)
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
	table := requests.New(origin)
	for range 2 {
		if err := table.Drain(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestDrainEndsWithItsContext(t *testing.T) {
	table := requests.New(origin)
	opened(table, &collector{})
	impatient := errors.New("impatient")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(impatient)
	if err := table.Drain(ctx); !errors.Is(err, impatient) {
		t.Errorf("got %v, want the cause", err)
	}
}

func TestResponsesAreReadInOrder(t *testing.T) {
	var q requests.Responses
	for round := range 3 { // it is used again
		q.Open()
		for i := range 3 {
			q.Receive(&infer.Response{Index: uint32(10*round + i), Final: i == 2})
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
	var q requests.Responses
	q.Open()
	for range 20 { // a response that is there counts, whatever the context
		if p := q.Next(ctx); p != nil {
			t.Fatalf("got %v before any response", p)
		}
		q.Receive(new(infer.Response))
		if p := q.Next(ctx); p == nil {
			t.Fatal("got nothing of a response that is there")
		}
	}
}

// allowance is a budget for a number of bytes of responses.
type allowance struct{ left int64 }

func (a *allowance) Charge(n int64, _ bool) error {
	if n > a.left {
		return errs.New(errs.MemoryFull, "full")
	}
	a.left -= n
	return nil
}

func (a *allowance) Refund(n int64) { a.left += n }

// A response that exceeds the budget ends the request, whatever is still unread.
func TestResponsesBeyondTheBudgetEndTheRequest(t *testing.T) {
	for name, final := range map[string]bool{"the last": true, "one of several": false} {
		t.Run(name, func(t *testing.T) {
			var m memory
			budget := &allowance{left: 6}
			q := requests.Responses{Budget: budget}
			q.Open()
			if q.Receive(m.response(infer.Work{}, false)) { // of 4 bytes
				t.Error("the first response was refused")
			}
			if !q.Receive(m.response(infer.Work{Attempt: 3}, final)) {
				t.Error("the request goes on")
			}
			p := q.Next(t.Context())
			if errs.Of(p.Err) != errs.MemoryFull || !p.Final || p.Work.Attempt != 3 || m.held.Load() != 0 || budget.left != 6 {
				t.Errorf("got %+v with %d outputs held and %d bytes left", p, m.held.Load(), budget.left)
			}
		})
	}
}

// A request whose client does not read ends, and whoever responds is told.
func TestRequestsThatLeaveTooMuchUnreadEnd(t *testing.T) {
	const most, bytes = 1024, 64 << 20
	for name, tt := range map[string]struct {
		unread int   // responses that are taken
		size   int64 // of the first
		ended  bool  // by one more
	}{
		"fewer":      {most - 1, 4, false},
		"responses":  {most, 4, true},
		"less":       {1, bytes - 1, false},
		"bytes":      {1, bytes, true},
		"much bytes": {1, 3 * bytes, true},
	} {
		for order, preserved := range map[string]bool{"": false, " behind another": true} {
			t.Run(name+order, func(t *testing.T) {
				table, responses := requests.New(origin), new(requests.Responses)
				responses.Open()
				var canceled []infer.RequestID
				table.OnRefusal(func(id infer.RequestID) { canceled = append(canceled, id) })
				w, first := infer.Work{Request: table.NextID(), Attempt: 2}, infer.Work{Request: table.NextID()}
				if preserved {
					table.OpenInOrder(first, &infer.ModelRef{Name: "m"}, &collector{})
					table.OpenInOrder(w, &infer.ModelRef{Name: "m"}, responses)
				} else {
					table.Open(w, &infer.ModelRef{Name: "m"}, responses)
				}
				var m memory
				for i := range tt.unread {
					r := m.response(w, false)
					if i == 0 {
						r.Outputs[0].Data.Length = tt.size
					}
					table.Respond(r)
				}
				if len(canceled) > 0 {
					t.Fatal("ended too soon")
				}
				table.Respond(m.response(w, false))
				if !tt.ended {
					table.Respond(m.response(w, true)) // is taken, however much there is
					if len(canceled) > 0 || int(m.held.Load()) != tt.unread+2 {
						t.Errorf("canceled %v with %d outputs held", canceled, m.held.Load())
					}
					return
				}
				p := responses.Next(t.Context())
				if errs.Of(p.Err) != errs.ResponsesUnread || !p.Final || p.Work != w || m.held.Load() != 0 {
					t.Errorf("ended by %+v with %d outputs held", p, m.held.Load())
				}
				if diff := cmp.Diff([]infer.RequestID{w.Request}, canceled); diff != "" {
					t.Error(diff)
				}
				table.Respond(m.response(w, true))
				if m.held.Load() != 0 {
					t.Error("a response after the end is held")
				}
			})
		}
	}
}
