package requests_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/gateway/internal/requests"
)

// ordered is a table with requests to one generation that preserves ordering.
type ordered struct {
	*requests.Table
	memory memory
	work   []infer.Work
	slots  []requests.Slot
	got    []string // answers, by the position of their request
	done   []int    // whose slot is to be freed
}

func newOrdered(n int) *ordered {
	o := &ordered{Table: requests.New(origin)}
	for range n {
		o.open(infer.ModelRef{Name: "m"})
	}
	return o
}

func (o *ordered) open(of infer.ModelRef) {
	w := infer.Work{Request: o.NextID(), Attempt: 1}
	n := len(o.work)
	o.work = append(o.work, w)
	o.slots = append(o.slots, o.OpenInOrder(w, &of, responder(func(r *infer.Response) {
		text := fmt.Sprint(n)
		if r.Err != nil {
			text += " " + string(errs.Of(r.Err))
		}
		if r.Final {
			o.done = append(o.done, n)
		} else {
			text += " part"
		}
		o.got = append(o.got, text)
		r.Release()
	})))
}

// settle frees the slots of answered requests.
func (o *ordered) settle() {
	for len(o.done) > 0 {
		n := o.done[0]
		o.done = o.done[1:]
		o.slots[n].Free()
	}
}

// respond does what the scheduler or a worker does.
func (o *ordered) respond(r *infer.Response) {
	o.Respond(r)
	o.settle()
}

type responder func(*infer.Response)

func (f responder) Receive(r *infer.Response) bool {
	final := r.Final
	f(r)
	return final
}

func (o *ordered) result(n int) { o.respond(o.memory.response(o.work[n], true)) }
func (o *ordered) part(n int)   { o.respond(o.memory.response(o.work[n], false)) }

func (o *ordered) refuse(n int, reason errs.Reason) {
	o.respond(infer.Refuse(o.work[n], errs.New(reason, "")))
}

// giveUp ends a request as the gateway does when its client disconnects.
func (o *ordered) giveUp(n int) bool {
	defer o.settle()
	return o.Finish(infer.Fail(o.work[n], errs.New(errs.Canceled, "")))
}

func (o *ordered) expect(t *testing.T, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, o.got); d != "" {
		t.Errorf("answers (-want +got):\n%s", d)
	}
	if o.memory.held.Load() != 0 || o.InFlight() != 0 {
		t.Errorf("%d outputs held, %d in flight", o.memory.held.Load(), o.InFlight())
	}
}

func TestAnswersWaitForThoseBeforeThem(t *testing.T) {
	o := newOrdered(4)
	o.result(2)
	o.result(1)
	if len(o.got) != 0 {
		t.Fatalf("answered %v before the first", o.got)
	}
	o.result(0)
	o.result(3)
	o.expect(t, "0", "1", "2", "3")
}

// The next response does not go out as soon as one has been delivered: whoever has that one may not have passed
// it on yet.
func TestAnswersWaitUntilTheTurnIsPassed(t *testing.T) {
	o := newOrdered(2)
	o.result(1)
	o.Respond(o.memory.response(o.work[0], true))
	if d := cmp.Diff([]string{"0"}, o.got); d != "" {
		t.Error(d)
	}
	o.settle()
	o.expect(t, "0", "1")
}

func TestFailuresOfTheModelKeepTheirTurn(t *testing.T) {
	o := newOrdered(2)
	o.respond(infer.Fail(o.work[1], errs.New(errs.ExecutionFailed, "")))
	o.result(0)
	o.expect(t, "0", "1 execution_failed")
}

func TestWhatHasNotRunWaitsForNobody(t *testing.T) {
	o := newOrdered(3)
	o.refuse(1, errs.QueueTimeout)
	o.result(2)
	o.refuse(0, errs.InstanceCrashed)
	o.expect(t, "1 queue_timeout", "0 instance_crashed", "2")
}

func TestAHeldAnswerIsTheAnswerUnlessTheClientGivesUp(t *testing.T) {
	o := newOrdered(3)
	o.result(1)
	o.refuse(1, errs.InstanceCrashed) // its worker was lost after it had answered
	o.result(1)
	o.result(2)
	if !o.giveUp(2) || o.giveUp(2) {
		t.Error("a client can give up a held answer, once")
	}
	o.result(0)
	if o.giveUp(0) || o.giveUp(1) {
		t.Error("an answered request was given up")
	}
	o.expect(t, "2 cancelled", "0", "1")
}

func TestResponsesOfOneRequestStayTogether(t *testing.T) {
	o := newOrdered(3)
	o.part(1)
	o.part(0)
	o.part(1)
	o.part(2)
	o.result(1)
	o.result(0)
	o.part(2)
	o.giveUp(2)
	o.expect(t, "0 part", "0", "1 part", "1 part", "1", "2 part", "2 part", "2 cancelled")
}

func TestLinesOfContentsAreApart(t *testing.T) {
	o := newOrdered(1)
	o.open(infer.ModelRef{Name: "m", Generation: 2})
	o.result(1)
	o.result(0)
	o.open(infer.ModelRef{Name: "m"}) // an empty queue starts anew
	o.result(2)
	o.expect(t, "1", "0", "2")
}

// Whatever ends requests, and in whatever order, results arrive in the order of the requests and nothing is
// left behind.
func TestHistoriesKeepTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := newOrdered(0)
		var open, results []int
		end := func(t *rapid.T) {
			if len(open) == 0 {
				t.Skip("nothing is open")
			}
			i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
			n := open[i]
			open = slices.Delete(open, i, i+1)
			switch rapid.SampledFrom([]string{"result", "refusal", "cancelled", "held and cancelled"}).Draw(t, "end") {
			case "result":
				o.result(n)
				results = append(results, n)
			case "refusal":
				o.refuse(n, errs.MaxQueueSize)
			case "cancelled":
				o.giveUp(n)
			case "held and cancelled":
				if o.part(n); !o.giveUp(n) {
					t.Fatalf("request %d could not be given up", n)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"open": func(*rapid.T) {
				open = append(open, len(o.work))
				o.open(infer.ModelRef{Name: "m"})
			},
			"end": end,
			"": func(t *rapid.T) {
				slices.Sort(results)
				var want []string
				for _, n := range results {
					if len(open) == 0 || n < slices.Min(open) {
						want = append(want, fmt.Sprint(n))
					}
				}
				got := slices.DeleteFunc(slices.Clone(o.got), func(s string) bool { return strings.Contains(s, " ") })
				if !slices.Equal(got, want) {
					t.Fatalf("results %v are out, want %v with %v open", got, want, open)
				}
			},
		})
		for len(open) > 0 {
			end(t)
		}
		if o.memory.held.Load() != 0 || o.InFlight() != 0 {
			t.Fatalf("%d outputs held, %d in flight", o.memory.held.Load(), o.InFlight())
		}
	})
}
