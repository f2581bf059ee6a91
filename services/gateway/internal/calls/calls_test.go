package calls_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/calls"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/requests"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is the scheduler behind a gateway with the models m and, decoupled, tokens,
// and what its models call through.
type rig struct {
	*testing.T
	caller   *calls.Caller
	gateway  *core.Gateway
	table    *requests.Table
	clock    *mono.System
	budget   *memory.Budget
	stop     func()
	memory   int // buffers that are not released
	requests []*infer.Request
	canceled []infer.RequestID
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{T: t, table: requests.New(1), clock: mono.New(), budget: memory.NewBudget(0)}
	version := func(name string, decoupled bool) *core.Model {
		return &core.Model{Name: name, Versions: []*core.Version{{
			Ref: infer.ModelRef{Name: name, Version: 3}, State: infer.Ready,
			Config: &modelconfig.Config{
				Name: name, Decoupled: decoupled, Inputs: []modelconfig.IO{{Name: "X", Datatype: tensor.Uint8, Dims: tensor.Shape{4}}},
				Outputs: []modelconfig.IO{{Name: "Y", Datatype: tensor.Uint8, Dims: tensor.Shape{4}}},
			},
		}}}
	}
	r.gateway = core.New(core.ServerInfo{}, core.Deps{Dispatcher: r, Requests: r.table, Clock: r.clock, Pool: tensor.NewPool(0)})
	r.gateway.Update(core.NewSnapshot(1, true, []*core.Model{version("m", false), version("tokens", true)}))
	ctx, stop := context.WithCancel(t.Context())
	r.caller, r.stop = calls.New(ctx, r.gateway, path.Options{Budget: r.budget}), stop
	return r
}

// over checks that all has been given back.
func (r *rig) over() {
	r.Helper()
	synctest.Wait()
	for _, q := range r.requests {
		q.Release()
	}
	if r.memory != 0 || r.gateway.InFlight() != 0 || r.budget.Reserved() != 0 {
		r.Errorf("%d buffers, %d requests and %d bytes of the budget are held at the end", r.memory, r.gateway.InFlight(), r.budget.Reserved())
	}
}

func (r *rig) Submit(q *infer.Request) error {
	r.requests = append(r.requests, q)
	return nil
}

func (r *rig) Cancel(id infer.RequestID) { r.canceled = append(r.canceled, id) }

// tensor is four bytes that are counted.
func (r *rig) tensor(name string) infer.Tensor {
	r.memory++
	b := tensor.Wrap(make([]byte, 4), false, func(*tensor.Buffer) { r.memory-- })
	return infer.Tensor{Name: name, Datatype: tensor.Uint8, Shape: tensor.Shape{4}, Data: tensor.InBuffer(b, 0, 4)}
}

// respond gives a response to the only request.
func (r *rig) respond(final bool, outputs ...infer.Tensor) {
	r.table.Respond(&infer.Response{Work: r.requests[0].Work, Final: final, Outputs: outputs})
	synctest.Wait()
}

// received are the responses of a call, as it notes them.
type received []string

func (l *received) note(p *infer.Response) {
	var names []string
	for _, out := range p.Outputs {
		names = append(names, out.Name)
	}
	text := fmt.Sprintf("%v, final %t", names, p.Final)
	if p.Err != nil {
		text += ", " + string(errs.Of(p.Err))
	}
	*l = append(*l, text)
	p.Release()
}

func TestACallIsARequestOfItsParent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		parent := infer.Parent{Batch: infer.BatchID{Epoch: 2, Number: 3}, Unit: infer.Unit{Request: infer.RequestID{Origin: 1, Number: 9}}}
		deadline := r.clock.Now().Add(time.Minute)
		var got received
		r.caller.Call(&infer.Call{
			Model: "m", ID: "id", Inputs: []infer.Tensor{r.tensor("X")}, Outputs: []infer.Output{{Name: "Y"}, {Name: "Y"}},
			Parameters: []infer.Parameter{{Key: "k", Value: int64(1)}}, Sequence: infer.Sequence{Key: "s", Start: true}, Priority: 2,
			Timeout: time.Second, Trace: "trace", Parent: parent, Tenant: "a", CostClass: "high", Deadline: deadline,
		}, got.note)
		q := *r.requests[0]
		if len(q.Inputs) != 1 || r.memory != 1 {
			t.Errorf("%d inputs in %d buffers, want the call's own", len(q.Inputs), r.memory)
		}
		q.Inputs = nil
		want := infer.Request{
			Work: infer.Work{Request: infer.RequestID{Origin: 1, Number: 1}, Attempt: 1, Revision: 1}, ID: "id",
			Model: infer.ModelRef{Name: "m", Version: 3}, AnyVersion: true, BatchSize: 1, Outputs: []infer.Output{{Name: "Y"}},
			Parameters: []infer.Parameter{{Key: "k", Value: int64(1)}}, Sequence: infer.Sequence{Key: "s", Start: true}, Priority: 2,
			Timeout: time.Second, Deadline: deadline, Tenant: "a", CostClass: "high", Trace: "trace", Parent: parent, Received: q.Received,
		}
		if diff := cmp.Diff(want, q); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		r.respond(true, r.tensor("Y"))
		if diff := cmp.Diff(received{"[Y], final true"}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		r.over()
	})
}

// The caller has a response as long as it likes, and holds back the next until it has
// taken the one before.
func TestResponsesComeOneAfterAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var got received
		next := make(chan bool)
		r.caller.Call(&infer.Call{Model: "tokens", Inputs: []infer.Tensor{r.tensor("X")}}, func(p *infer.Response) {
			got.note(p)
			<-next
		})
		r.respond(false, r.tensor("Y"))
		released := false
		r.table.Respond(&infer.Response{Work: r.requests[0].Work, OnRelease: func() { released = true }})
		r.respond(true)
		if len(got) != 1 || released {
			t.Errorf("%d responses while the first is taken", len(got))
		}
		for range 3 {
			next <- true
		}
		synctest.Wait()
		want := received{"[Y], final false", "[], final false", "[], final true"}
		if diff := cmp.Diff(want, got); diff != "" || !released {
			t.Errorf("released %t; (-want +got):\n%s", released, diff)
		}
		r.over()
	})
}

// Texts are Triton's, for its models look at them.
func TestCallsThatAreRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		call   infer.Call
		input  string
		reason errs.Reason
		want   string
	}{
		"no such model": {
			infer.Call{Model: "nope"},
			"X", errs.ModelNotFound,
			"Model nope - Error when running inference: Failed for execute the inference request. Model 'nope' is not ready.",
		},
		"no such version": {
			infer.Call{Model: "m", Version: "7"},
			"X", errs.ModelNotFound,
			"Model m - Error when running inference: Failed for execute the inference request. Model 'm' is not ready.",
		},
		"one response of a decoupled model": {
			infer.Call{Model: "tokens", Single: true},
			"X", errs.Unsupported,
			"Model tokens - Error when running inference: Model tokens is using the decoupled. The current BLS request call doesn't support models " +
				"using the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled models.'",
		},
		"another input": {
			infer.Call{Model: "m"},
			"Z", errs.InputUnexpected,
			"Model m - Error when running inference: unexpected inference input 'Z' for model 'm'",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				tt.call.Inputs = []infer.Tensor{r.tensor(tt.input)}
				responses := 0
				r.caller.Call(&tt.call, func(p *infer.Response) {
					responses++
					if e := errs.From(p.Err); !p.Final || e.Reason != tt.reason || e.Msg != tt.want {
						t.Errorf("final %t, %s: %s", p.Final, e.Reason, e.Msg)
					}
				})()
				if responses != 1 || len(r.requests) != 0 {
					t.Errorf("%d responses and %d requests", responses, len(r.requests))
				}
				r.over()
			})
		})
	}
}

// Whatever ends a call, its request is canceled and it has one end.
func TestCallsEndEarly(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(r *rig, cancel func())
		want string
	}{
		"canceled":                {func(_ *rig, cancel func()) { cancel(); cancel() }, "cancelled"},
		"the gateway ends":        {func(r *rig, _ func()) { r.stop() }, "cancelled"},
		"its deadline has passed": {func(*rig, func()) { <-time.After(2 * time.Minute) }, "deadline_compute"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				var got received
				cancel := r.caller.Call(&infer.Call{
					Model: "tokens", Inputs: []infer.Tensor{r.tensor("X")}, Deadline: r.clock.Now().Add(time.Minute),
				}, got.note)
				r.respond(false, r.tensor("Y"))
				tt.end(r, cancel)
				synctest.Wait()
				if diff := cmp.Diff(received{"[Y], final false", "[], final true, " + tt.want}, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if len(r.canceled) != 1 || r.canceled[0] != r.requests[0].Work.Request {
					t.Errorf("canceled %v", r.canceled)
				}
				r.respond(true, r.tensor("Y"))
				r.over()
			})
		})
	}
}

// A gateway that drains lets the calls of those requests in that it waits for.
func TestAGatewayThatDrainsTakesCallsOfItsRequests(t *testing.T) {
	for name, parent := range map[string]infer.Parent{"of a request": {Batch: infer.BatchID{Number: 1}}, "of a warm-up": {}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				if err := r.gateway.Drain(t.Context()); err != nil {
					t.Fatal(err)
				}
				var got received
				r.caller.Call(&infer.Call{Model: "m", Inputs: []infer.Tensor{r.tensor("X")}, Parent: parent}, got.note)
				if taken := parent != (infer.Parent{}); taken != (len(r.requests) == 1) {
					t.Fatalf("%d requests", len(r.requests))
				} else if taken {
					r.respond(true)
				}
				if last := strings.Join(got, ""); !strings.Contains(last, "final true") {
					t.Errorf("ended with %q", last)
				}
				r.over()
			})
		})
	}
}
