package core_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// free takes no input: what is tested is the way of the answer.
func free(t *testing.T) (*harness, *core.Version) {
	v := ready("m", &modelconfig.Config{Inputs: []modelconfig.IO{optional(io("A", tensor.FP32, 2))}})
	return newGateway(t, &core.Model{Name: "m", Versions: []*core.Version{v}}), v
}

func TestRequestsCarryTheirIdentity(t *testing.T) {
	h, v := free(t)
	first, second := h.NewRequest(v), h.NewRequest(v)
	want := infer.Work{Request: infer.RequestID{Origin: 9, Number: 1}, Attempt: 1, Revision: 5}
	if d := cmp.Diff(want, first.Work); d != "" {
		t.Error(d)
	}
	if first.Model != v.Ref || first.Received == 0 || second.Work.Request.Number != 2 {
		t.Errorf("got %+v and %+v", first, second)
	}
}

func TestInferReturnsTheAnswer(t *testing.T) {
	h, v := free(t)
	answer := &infer.Response{Final: true, Outputs: []infer.Tensor{{Name: "X"}}}
	h.submit = func(r *infer.Request) error {
		if h.InFlight() != 1 {
			t.Errorf("%d in flight at the submission, want 1", h.InFlight())
		}
		answer.Work = r.Work
		h.table.Respond(answer)
		return nil
	}
	got, _, err := h.Infer(t.Context(), v, h.NewRequest(v))
	if err != nil || got != answer || h.InFlight() != 0 {
		t.Errorf("got %v, %v with %d in flight", got, err, h.InFlight())
	}
}

func TestRefusedSubmissionIsTheAnswer(t *testing.T) {
	h, v := free(t)
	h.submit = func(*infer.Request) error { return errs.New(errs.QueueFull, "full") }
	freed := 0
	buffer := tensor.Wrap(make([]byte, 8), false, func(*tensor.Buffer) { freed++ })
	r := h.NewRequest(v)
	r.Inputs = []infer.Tensor{{Name: "A", Datatype: tensor.FP32, Shape: tensor.Shape{2}, Data: tensor.InBuffer(buffer, 0, 8)}}
	p, _, err := h.Infer(t.Context(), v, r)
	if p != nil || errs.Of(err) != errs.QueueFull || h.InFlight() != 0 || freed != 1 {
		t.Errorf("got %v, %v with %d in flight and the input freed %d times", p, err, h.InFlight(), freed)
	}
}

// The scheduler owns a submitted request: the gateway does not touch it any more.
func TestRequestIsTheSchedulersAfterSubmit(t *testing.T) {
	h, v := free(t)
	h.submit = func(r *infer.Request) error {
		w := r.Work
		*r = infer.Request{} // as a scheduler does that reuses requests
		h.table.Respond(&infer.Response{Work: w, Final: true})
		return nil
	}
	if _, _, err := h.Infer(t.Context(), v, h.NewRequest(v)); err != nil {
		t.Error(err)
	}
}

func TestEndOfTheContextEndsTheRequest(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(context.Context) (context.Context, context.CancelFunc)
		want refusal
	}{
		{"cancelled", func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Second, cancel)
			return ctx, cancel
		}, refusal{errs.Canceled, ""}},
		{"out of time", func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Second)
		}, refusal{errs.DeadlineCompute, "the deadline passed before the answer was there"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, v := free(t)
				var work infer.Work
				var canceled []infer.RequestID
				h.submit = func(r *infer.Request) error { work = r.Work; return nil }
				h.cancel = func(id infer.RequestID) { canceled = append(canceled, id) }
				ctx, cancel := c.end(t.Context())
				defer cancel()
				p, _, err := h.Infer(ctx, v, h.NewRequest(v))
				if d := cmp.Diff(c.want, refusalOf(err)); p != nil || d != "" {
					t.Errorf("got %v: %s", p, d)
				}
				if d := cmp.Diff([]infer.RequestID{work.Request}, canceled); d != "" {
					t.Error(d)
				}
				if h.InFlight() != 0 || h.table.Finish(&infer.Response{Work: work, Final: true}) {
					t.Error("the request is not over")
				}
			})
		})
	}
}

// A response that arrives while the client gives up is either delivered or released. The request is canceled
// only if no response arrived.
func TestAnswerRacesTheClientsPatience(t *testing.T) {
	h, v := free(t)
	var held, canceled, refused atomic.Int64
	h.cancel = func(infer.RequestID) { canceled.Add(1) }
	var all sync.WaitGroup
	h.submit = func(r *infer.Request) error {
		held.Add(1)
		b := tensor.Wrap(make([]byte, 1), false, func(*tensor.Buffer) { held.Add(-1) })
		p := &infer.Response{Work: r.Work, Final: true, Outputs: []infer.Tensor{{Name: "X", Data: tensor.InBuffer(b, 0, 1)}}}
		all.Go(func() { h.table.Respond(p) })
		return nil
	}
	for range 300 {
		all.Go(func() {
			ctx, leave := context.WithCancel(t.Context())
			all.Go(leave)
			p, _, err := h.Infer(ctx, v, h.NewRequest(v))
			if err != nil {
				refused.Add(1)
				return
			}
			p.Release()
		})
	}
	all.Wait()
	if held.Load() != 0 || canceled.Load() != refused.Load() || h.InFlight() != 0 {
		t.Errorf("%d outputs held, %d cancelled, %d refused, %d in flight", held.Load(), canceled.Load(), refused.Load(), h.InFlight())
	}
}

func TestDrainRefusesTheNewAndWaitsForTheOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, v := free(t)
		var work infer.Work
		h.submit = func(r *infer.Request) error { work = r.Work; return nil }
		answered, drained := false, false
		go func() {
			if _, _, err := h.Infer(t.Context(), v, h.NewRequest(v)); err != nil {
				t.Error(err)
			}
			answered = true
		}()
		synctest.Wait()
		go func() {
			if err := h.Drain(t.Context()); err != nil {
				t.Error(err)
			}
			drained = true
		}()
		synctest.Wait()
		if answered || drained || h.Ready() || !h.Live() {
			t.Error("while draining: nothing is over, live and not ready")
		}
		_, _, err := h.Infer(t.Context(), v, h.NewRequest(v))
		want := refusal{errs.Draining, "Server is stopping, scheduler for model has stopped accepting new inference requests"}
		if d := cmp.Diff(want, refusalOf(err)); d != "" {
			t.Error(d)
		}
		// A request on a connection that was open before is taken until nothing is in flight.
		var open core.Execution
		open.Connected = true
		late := h.NewRequest(v)
		if err := open.Admit(h.Gateway, v, late); err != nil {
			t.Fatalf("on an open connection: %v", err)
		}
		h.table.Respond(&infer.Response{Work: work, Final: true})
		synctest.Wait()
		if !answered || drained || h.Versions() != 1 {
			t.Errorf("the request on the open connection is in flight: %d versions, drained: %t", h.Versions(), drained)
		}
		h.table.Respond(&infer.Response{Work: late.Work, Final: true})
		open.Close()
		late.Release()
		synctest.Wait()
		if !drained || h.Versions() != 0 {
			t.Error("the last answer ends the drain")
		}
		next := h.NewRequest(v)
		if err := open.Admit(h.Gateway, v, next); errs.Of(err) != errs.Draining {
			t.Errorf("after the drain: %v", err)
		}
		next.Release()
	})
}

// No request gets to the scheduler once Drain has returned.
func TestNothingSlipsPastADrain(t *testing.T) {
	for range 50 {
		h, v := free(t)
		var over atomic.Bool
		h.submit = func(r *infer.Request) error {
			if over.Load() {
				t.Error("submitted after the drain")
			}
			h.table.Respond(&infer.Response{Work: r.Work, Final: true})
			return nil
		}
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for {
					if _, _, err := h.Infer(t.Context(), v, h.NewRequest(v)); err != nil {
						return
					}
				}
			})
		}
		if err := h.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		over.Store(true)
		all.Wait()
	}
}

func TestRequestForAGenerationThatIsGoneGoesToTheNextOne(t *testing.T) {
	old := ready("m", &modelconfig.Config{Inputs: []modelconfig.IO{io("x", tensor.Int32, 1)}})
	next := ready("m", &modelconfig.Config{Inputs: []modelconfig.IO{io("x", tensor.Int32, 1)}})
	next.Ref.Generation = 2
	other := ready("m", &modelconfig.Config{Inputs: []modelconfig.IO{io("y", tensor.Int32, 1)}})
	other.Ref.Generation = 2
	later := ready("m", &modelconfig.Config{Inputs: []modelconfig.IO{io("x", tensor.Int32, 1)}})
	later.Ref.Version = 2
	tests := map[string]struct {
		now        *core.Version
		sequence   infer.Sequence
		anyVersion bool
		want       []string
	}{
		"a newer generation":           {now: next, want: []string{"m/1@0 attempt 1", "m/1@2 attempt 2"}},
		"no newer generation":          {now: old, want: []string{"m/1@0 attempt 1"}},
		"one that does not take it":    {now: other, want: []string{"m/1@0 attempt 1"}},
		"a newer one and a sequence":   {now: next, sequence: infer.Sequence{ID: 1}, want: []string{"m/1@0 attempt 1"}},
		"a newer one that leaves also": {now: next, want: []string{"m/1@0 attempt 1", "m/1@2 attempt 2"}},
		"a later version":              {now: later, anyVersion: true, want: []string{"m/1@0 attempt 1", "m/2@0 attempt 2"}},
		"a later version than named":   {now: later, want: []string{"m/1@0 attempt 1"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			h := newGateway(t, &core.Model{Name: "m", Versions: []*core.Version{old}})
			var got []string
			h.submit = func(r *infer.Request) error {
				got = append(got, fmt.Sprintf("%v attempt %d", r.Model, r.Work.Attempt))
				h.Update(core.NewSnapshot(6, true, []*core.Model{{Name: "m", Versions: []*core.Version{tt.now}}}))
				if r.Work.Attempt == 2 && !strings.HasSuffix(name, "leaves also") {
					r.Release()
					h.table.Respond(&infer.Response{Work: r.Work, Final: true})
					return nil
				}
				refusal := infer.Fail(r.Work, errs.New(errs.NoWorker, "gone"))
				refusal.Returned = r
				h.table.Respond(refusal)
				return nil
			}
			released := 0
			r := h.NewRequest(old)
			buffer := tensor.Wrap(make([]byte, 4), false, func(*tensor.Buffer) { released++ })
			r.Inputs = []infer.Tensor{{Name: "x", Datatype: tensor.Int32, Shape: tensor.Shape{1}, Data: tensor.InBuffer(buffer, 0, 4)}}
			r.Sequence, r.AnyVersion = tt.sequence, tt.anyVersion
			_, served, err := h.Infer(t.Context(), old, r)
			if rerouted := len(tt.want) == 2; rerouted != (served == tt.now && served != old) || rerouted == (served == old) {
				t.Errorf("the answer is of %v", served.Ref)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("submitted (-want +got):\n%s", diff)
			}
			if answered := err == nil; answered != (len(tt.want) == 2 && !strings.HasSuffix(name, "leaves also")) || released != 1 || h.InFlight() != 0 {
				t.Errorf("error %v, inputs released %d times, %d in flight", err, released, h.InFlight())
			}
		})
	}
}

func TestAnswersKeepTheOrderOfRequestsWhereTheModelDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := ready("m", &modelconfig.Config{
			Inputs:   []modelconfig.IO{optional(io("A", tensor.FP32, 2))},
			Batching: &modelconfig.DynamicBatching{PreserveOrdering: true},
		})
		h := newGateway(t, &core.Model{Name: "m", Versions: []*core.Version{v}})
		var work []infer.Work
		h.submit = func(r *infer.Request) error { work = append(work, r.Work); return nil }
		h.cancel = func(infer.RequestID) {}
		var answers []*infer.Response
		var failures []refusal
		var executions []*core.Execution // of the answers
		call := func(ctx context.Context) {
			go func() {
				x, r := new(core.Execution), h.NewRequest(v)
				if err := x.Admit(h.Gateway, v, r); err != nil {
					t.Error(err)
				}
				x.Dispatch(r)
				p, err := x.Next(ctx)
				if err != nil {
					failures = append(failures, refusalOf(err))
					return
				}
				answers, executions = append(answers, p), append(executions, x)
			}()
			synctest.Wait()
		}
		ctx, leave := context.WithCancel(t.Context())
		call(t.Context())
		call(ctx)
		call(t.Context())
		respond := func(i int) {
			h.table.Respond(&infer.Response{Work: work[i], Final: true, Index: uint32(i)})
			synctest.Wait()
		}
		respond(2)
		leave()
		synctest.Wait()
		if d := cmp.Diff([]refusal{{errs.Canceled, ""}}, failures); d != "" || len(answers) != 0 {
			t.Errorf("%d answers before the first, failures %s", len(answers), d)
		}
		respond(0)
		if len(answers) != 1 || answers[0].Index != 0 {
			t.Fatalf("answers %v, want the first alone while it is being passed on", answers)
		}
		executions[0].Pass()
		synctest.Wait()
		if len(answers) != 2 || answers[1].Index != 2 || h.InFlight() != 0 {
			t.Errorf("answers %v with %d in flight", answers, h.InFlight())
		}
	})
}
