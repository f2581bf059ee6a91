package path_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
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
	"github.com/nereid-serving/nereid/services/gateway/internal/cache"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/requests"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a path to a gateway with the models m and, decoupled, tokens. It also plays the scheduler behind the
// gateway and the transport in front of it.
type rig struct {
	*path.Path
	gateway  *core.Gateway
	table    *requests.Table
	memory   atomic.Int64 // buffers that have not been released
	submit   func(*infer.Request) error
	canceled []infer.RequestID

	header   map[string]string
	receive  func() error
	decode   func(*path.Call) error
	send     func(*infer.Response) error
	sent     []string
	last     *path.Outcome
	outcomes int
}

func newRig(t testing.TB, o path.Options) *rig {
	t.Helper()
	r := &rig{table: requests.New(1)}
	version := func(name string, decoupled bool) *core.Model {
		return &core.Model{Name: name, Versions: []*core.Version{{
			Ref: infer.ModelRef{Name: name, Version: 1}, State: infer.Ready,
			Config: &modelconfig.Config{Name: name, Decoupled: decoupled, Inputs: []modelconfig.IO{{Name: "X", Datatype: tensor.Uint8, Dims: tensor.Shape{4}}}},
		}}}
	}
	cached := version("cached", false)
	cached.Versions[0].Config.Cached, cached.Versions[0].Content = true, "content"
	shared := version("shared", false)
	shared.Versions[0].Config.Shared, shared.Versions[0].Content = true, "content"
	r.gateway = core.New(core.ServerInfo{}, core.Deps{Dispatcher: r, Requests: r.table, Clock: mono.New(), Pool: tensor.NewPool(0)})
	r.gateway.Update(core.NewSnapshot(1, true, []*core.Model{version("m", false), version("tokens", true), cached, shared}))
	r.submit = func(q *infer.Request) error {
		r.respond(q, r.response(true))
		return nil
	}
	o.Meter = r
	o.Observers = append(o.Observers, path.Observer{Ended: r.Ended})
	if o.Budget == nil {
		o.Budget = memory.NewBudget(0)
	}
	r.Path = path.New(r.gateway, path.Protocol{Noun: "API"}, o)
	t.Cleanup(func() {
		if r.memory.Load() != 0 || r.gateway.InFlight() != 0 || o.Budget.Reserved() != 0 {
			t.Errorf("%d buffers, %d requests and %d bytes of the budget are held at the end", r.memory.Load(), r.gateway.InFlight(), o.Budget.Reserved())
		}
	})
	return r
}

// call is an inference of a model, or any call of an API.
func (r *rig) call(api core.API, model string) *path.Call {
	return &path.Call{API: api, Method: "method", Caller: r, Model: model, Body: body{r, new(path.Call)}, Sink: r}
}

func (r *rig) infer(t testing.TB, model string) error {
	t.Helper()
	c := r.call(core.InferenceAPI, model)
	c.Body = body{r, c}
	return r.Infer(t.Context(), c)
}

// tensor4 returns a counted tensor of four bytes.
func (r *rig) tensor4(name string) infer.Tensor {
	r.memory.Add(1)
	b := tensor.Wrap(make([]byte, 4), false, func(*tensor.Buffer) { r.memory.Add(-1) })
	return infer.Tensor{Name: name, Datatype: tensor.Uint8, Shape: tensor.Shape{4}, Data: tensor.InBuffer(b, 0, 4)}
}

func (r *rig) response(final bool) *infer.Response {
	return &infer.Response{Final: final, Outputs: []infer.Tensor{r.tensor4("Y")}}
}

func (r *rig) respond(q *infer.Request, responses ...*infer.Response) {
	work := q.Work
	q.Release()
	for _, p := range responses {
		p.Work = work
		r.table.Respond(p)
	}
}

func (r *rig) Submit(q *infer.Request) error { return r.submit(q) }
func (r *rig) Cancel(id infer.RequestID)     { r.canceled = append(r.canceled, id) }

func (r *rig) Header(name string) []string {
	if v, ok := r.header[name]; ok {
		return []string{v}
	}
	return nil
}

func (*rig) Names() []string { return nil }

func (r *rig) Send(p *infer.Response) error {
	r.sent = append(r.sent, fmt.Sprintf("%d outputs, final %t", len(p.Outputs), p.Final))
	if r.send != nil {
		return r.send(p)
	}
	return nil
}

func (*rig) Failed(errs.Reason) {}

func (r *rig) Ended(o *path.Outcome) {
	copied := *o
	r.last = &copied
	r.outcomes++
}

type body struct {
	rig  *rig
	call *path.Call
}

func (b body) Receive() error {
	if b.rig.receive != nil {
		return b.rig.receive()
	}
	return b.call.Account.Receive(4)
}

func (b body) Decode() error {
	b.call.Request.Inputs = []infer.Tensor{b.rig.tensor4("X")}
	if b.rig.decode != nil {
		return b.rig.decode(b.call)
	}
	return nil
}

// recorded returns stages that record which of them a call takes.
func recorded(taken *[]string) []path.Stage {
	stages := path.Stages()
	for i := range stages {
		name, run := stages[i].Name, stages[i].Run
		stages[i].Run = func(c *path.Call) error {
			*taken = append(*taken, name)
			return run(c)
		}
	}
	return stages
}

// replaced returns the stages with one of them replaced.
func replaced(name string, run func(*path.Call) error) []path.Stage {
	stages := path.Stages()
	stages[slices.IndexFunc(stages, func(s path.Stage) bool { return s.Name == name })].Run = run
	return stages
}

func TestInferencesTakeAllStages(t *testing.T) {
	var taken []string
	r := newRig(t, path.Options{Stages: recorded(&taken)})
	if err := r.infer(t, "m"); err != nil {
		t.Fatal(err)
	}
	want := []string{"identify", "authorize", "operable", "enter", "budget", "receive", "route", "resolve", "decode", "attach", "check", "classify", "observe", "price", "cache", "admit", "dispatch", "stream"}
	if diff := cmp.Diff(want, taken); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"1 outputs, final true"}, r.sent); diff != "" {
		t.Error(diff)
	}
}

func TestOtherCallsTakeTheStagesOfAllCalls(t *testing.T) {
	var taken []string
	r := newRig(t, path.Options{Stages: recorded(&taken)})
	answered := false
	if err := r.Do(t.Context(), r.call(core.HealthAPI, ""), func() error { answered = true; return nil }); err != nil || !answered {
		t.Errorf("answered %t, %v", answered, err)
	}
	if diff := cmp.Diff([]string{"identify", "authorize", "operable", "budget"}, taken); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCallersOfARestrictedAPIAreRefusedBeforeAnythingIsRead(t *testing.T) {
	for _, api := range []core.API{core.InferenceAPI, core.HealthAPI} {
		r := newRig(t, path.Options{Restricted: core.Restrictions{api: {Header: "key", Value: "secret"}}})
		r.receive = func() error { t.Error("the body was read"); return nil }
		r.header = map[string]string{"key": "wrong"}
		var err error
		if api == core.InferenceAPI {
			err = r.infer(t, "none")
		} else {
			err = r.Do(t.Context(), r.call(api, ""), func() error { t.Error("the call was answered"); return nil })
		}
		if errs.Of(err) != errs.APIRestricted || errs.From(err).Msg != "This API is restricted, expecting header 'key'" {
			t.Errorf("%s: %v", api, err)
		}
	}
}

func TestCallsOfNoAPIAreRefused(t *testing.T) {
	r := newRig(t, path.Options{})
	err := r.Do(t.Context(), r.call("", ""), func() error { t.Error("the call was answered"); return nil })
	if errs.Of(err) != errs.Unsupported {
		t.Error(err)
	}
}

func TestKnownResponsesAreGivenWithoutTheScheduler(t *testing.T) {
	var uses []bool
	var taken []string
	kept := cache.New(cache.NewLocal(1<<20), func(_ string, u infer.CacheUse) { uses = append(uses, u.Hit) })
	r := newRig(t, path.Options{Cache: kept, Stages: recorded(&taken), Budget: memory.NewBudget(100)})
	submitted := 0
	submit := r.submit
	r.submit = func(q *infer.Request) error { submitted++; return submit(q) }
	for range 3 {
		if err := r.infer(t, "cached"); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]bool{false, true, true}, uses); diff != "" || submitted != 1 || len(r.sent) != 3 || r.sent[2] != r.sent[0] {
		t.Errorf("submitted %d, sent %v, hits (-want +got):\n%s", submitted, r.sent, diff)
	}
}

func TestFailuresAreNotKept(t *testing.T) {
	var uses []bool
	kept := cache.New(cache.NewLocal(1<<20), func(_ string, u infer.CacheUse) { uses = append(uses, u.Hit) })
	r := newRig(t, path.Options{Cache: kept})
	submit := r.submit
	r.submit = func(q *infer.Request) error {
		r.respond(q, infer.Fail(q.Work, errs.New(errs.ExecutionFailed, "no")))
		return nil
	}
	if err := r.infer(t, "cached"); errs.Of(err) != errs.ExecutionFailed {
		t.Fatal(err)
	}
	r.submit = submit
	for range 2 {
		if err := r.infer(t, "cached"); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]bool{false, false, true}, uses); diff != "" {
		t.Errorf("hits (-want +got):\n%s", diff)
	}
}

// elsewhere stores values in another process, which answers when the test lets it.
type elsewhere struct {
	answers chan struct{}
	values  map[string][]byte
}

func (e *elsewhere) Get(ctx context.Context, name string, _ int) []byte {
	select {
	case <-e.answers:
		return e.values[name]
	case <-ctx.Done():
		return nil
	}
}

func (e *elsewhere) Set(name string, value func() []byte) { e.values[name] = value() }

func TestResponsesThatAreKnownElsewhereHoldUpNoCall(t *testing.T) {
	other := &elsewhere{make(chan struct{}), make(map[string][]byte)}
	r := newRig(t, path.Options{Cache: cache.New(cache.NewRemote(other), func(string, infer.CacheUse) {})})
	submitted := 0
	submit := r.submit
	r.submit = func(q *infer.Request) error { submitted++; return submit(q) }
	for range 3 {
		c := r.call(core.InferenceAPI, "cached")
		c.Body = body{r, c}
		if err := r.Start(t.Context(), c); err != nil { // while nobody answers
			t.Fatal(err)
		}
		other.answers <- struct{}{}
		if err := r.Finish(c); err != nil {
			t.Fatal(err)
		}
	}
	if submitted != 1 || len(r.sent) != 3 || r.sent[2] != r.sent[0] {
		t.Errorf("submitted %d, sent %v", submitted, r.sent)
	}
}

func TestCallsEndWhileTheirResponsesAreLookedForElsewhere(t *testing.T) {
	other := &elsewhere{make(chan struct{}), make(map[string][]byte)}
	r := newRig(t, path.Options{Cache: cache.New(cache.NewRemote(other), func(string, infer.CacheUse) {})})
	r.submit = func(*infer.Request) error { t.Error("submitted"); return nil }
	ctx, cancel := context.WithCancel(t.Context())
	c := r.call(core.InferenceAPI, "cached")
	c.Body = body{r, c}
	if err := r.Start(ctx, c); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := r.Finish(c); errs.Of(err) != errs.Canceled {
		t.Errorf("the call ends with %v", err)
	}
}

// begin starts a call of the model shared.
func (r *rig) begin(ctx context.Context, t *testing.T) *path.Call {
	t.Helper()
	c := r.call(core.InferenceAPI, "shared")
	c.Body = body{r, c}
	if err := r.Start(ctx, c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestRequestsInFlightShareAnExecution(t *testing.T) {
	r := newRig(t, path.Options{Cache: cache.New(nil, func(string, infer.CacheUse) {})})
	var submitted []*infer.Request
	r.submit = func(q *infer.Request) error { submitted = append(submitted, q); return nil }
	leader, follower := r.begin(t.Context(), t), r.begin(t.Context(), t)
	if len(submitted) != 1 {
		t.Fatalf("%d requests were submitted", len(submitted))
	}
	data := tensor.InHeap(make([]byte, 4)) // the copy is made in another goroutine
	r.respond(submitted[0], &infer.Response{Final: true, Outputs: []infer.Tensor{{Name: "Y", Datatype: tensor.Uint8, Shape: tensor.Shape{4}, Data: data}}})
	if err := r.Finish(follower); err != nil { // before the client of the other reads
		t.Error(err)
	}
	if err := r.Finish(leader); err != nil {
		t.Error(err)
	}
	if len(r.sent) != 2 || r.sent[0] != r.sent[1] {
		t.Errorf("sent %v", r.sent)
	}
}

func TestARequestWhoseLeaderIsCanceledIsExecuted(t *testing.T) {
	r := newRig(t, path.Options{Cache: cache.New(nil, func(string, infer.CacheUse) {})})
	submitted := make(chan *infer.Request, 2)
	r.submit = func(q *infer.Request) error { submitted <- q; return nil }
	ctx, cancel := context.WithCancel(t.Context())
	leader, follower := r.begin(ctx, t), r.begin(t.Context(), t)
	first := <-submitted
	cancel()
	if err := r.Finish(leader); errs.Of(err) != errs.Canceled {
		t.Errorf("the leader ends with %v", err)
	}
	second := <-submitted
	first.Release()
	r.respond(second, r.response(true))
	if err := r.Finish(follower); err != nil {
		t.Error(err)
	}
}

func TestAPanicEndsOneCall(t *testing.T) {
	for _, s := range path.Stages() {
		stages := replaced(s.Name, func(*path.Call) error { panic("a bug") })
		r := newRig(t, path.Options{Stages: stages, Budget: memory.NewBudget(100)})
		r.submit = func(q *infer.Request) error { q.Release(); return nil } // and no response
		err := r.infer(t, "m")
		if errs.Of(err) != errs.Bug || !strings.Contains(err.Error(), "a bug") || !strings.Contains(err.Error(), "path_test.go") {
			t.Errorf("in %s: %v", s.Name, err)
		}
		if text := errs.Visible(err).Msg; text != "internal error" {
			t.Errorf("in %s the client reads %q", s.Name, text)
		}
		if admitted := s.Name == "dispatch" || s.Name == "stream"; admitted != (len(r.canceled) == 1) {
			t.Errorf("in %s: canceled %v", s.Name, r.canceled)
		}
	}
	r := newRig(t, path.Options{})
	if err := r.Do(t.Context(), r.call(core.HealthAPI, ""), func() error { panic("a bug") }); errs.Of(err) != errs.Bug {
		t.Error(err)
	}
}

func TestModelsWithoutDecouplingGiveOneResponse(t *testing.T) {
	const withOutputs, bare = 0, 1
	type response struct {
		kind  int
		final bool
	}
	failure := errs.New(errs.ExecutionFailed, "no")
	for _, c := range []struct {
		name   string
		given  []response
		fails  bool
		reason errs.Reason
		text   string
	}{
		{"one", []response{{withOutputs, true}}, false, "", ""},
		{"one without outputs", []response{{bare, true}}, false, "", ""},
		{"one and the end", []response{{withOutputs, false}, {bare, true}}, false, "", ""},
		{"two", []response{{withOutputs, false}, {withOutputs, true}}, false, errs.ResponseCount, "expected a single response, got 2"},
		{"three and the end", []response{{withOutputs, false}, {withOutputs, false}, {withOutputs, false}, {bare, true}}, false, errs.ResponseCount, "expected a single response, got 3"},
		{"a failure", nil, true, errs.ExecutionFailed, "no"},
		{"a failure after a response", []response{{withOutputs, false}}, true, errs.ExecutionFailed, "no"},
		{"a failure after two", []response{{withOutputs, false}, {withOutputs, false}}, true, errs.ExecutionFailed, "no"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, path.Options{Budget: memory.NewBudget(100)})
			r.submit = func(q *infer.Request) error {
				var list []*infer.Response
				for _, g := range c.given {
					p := &infer.Response{Final: g.final}
					if g.kind == withOutputs {
						p = r.response(g.final)
					}
					list = append(list, p)
				}
				if c.fails {
					list = append(list, infer.Fail(q.Work, failure))
				}
				r.respond(q, list...)
				return nil
			}
			err := r.infer(t, "m")
			if errs.Of(err) != c.reason || err != nil && errs.From(err).Msg != c.text {
				t.Errorf("got %v", err)
			}
			if sent := len(r.sent) == 1; sent != (err == nil) || len(r.sent) > 1 {
				t.Errorf("sent %v", r.sent)
			}
		})
	}
}

func TestDecoupledModelsGiveAnyNumber(t *testing.T) {
	for _, c := range []struct {
		name       string
		given      func(r *rig) []*infer.Response
		emptyFinal bool
		want       []string
	}{
		{"none", func(*rig) []*infer.Response { return []*infer.Response{{Final: true}} }, false, nil},
		{"none, and its end", func(*rig) []*infer.Response { return []*infer.Response{{Final: true}} }, true, []string{"0 outputs, final true"}},
		{
			"three", func(r *rig) []*infer.Response {
				return []*infer.Response{r.response(false), r.response(false), r.response(true)}
			}, false,
			[]string{"1 outputs, final false", "1 outputs, final false", "1 outputs, final true"},
		},
		{
			"one and its end", func(r *rig) []*infer.Response { return []*infer.Response{r.response(false), {Final: true}} }, true,
			[]string{"1 outputs, final false", "0 outputs, final true"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, path.Options{Budget: memory.NewBudget(100)})
			r.decode = func(call *path.Call) error { call.EmptyFinal = c.emptyFinal; return nil }
			r.submit = func(q *infer.Request) error { r.respond(q, c.given(r)...); return nil }
			if err := r.infer(t, "tokens"); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, r.sent); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestEndpointsOfOneResponseRefuseDecoupledModels(t *testing.T) {
	r := newRig(t, path.Options{})
	c := r.call(core.InferenceAPI, "tokens")
	c.Single = "ModelInfer RPC"
	err := r.Infer(t.Context(), c)
	if errs.Of(err) != errs.Unsupported || errs.From(err).Msg != "ModelInfer RPC doesn't support models with decoupled transaction policy" {
		t.Error(err)
	}
}

// Responses that wait for their client count in the budget. The final one may use what its request held.
func TestWaitingResponsesCountInTheBudget(t *testing.T) {
	for _, c := range []struct {
		limit int64
		want  errs.Reason
		sent  int
	}{
		{limit: 8, want: "", sent: 2},
		{limit: 7, want: errs.MemoryFull, sent: 0}, // the request's 4 bytes and the first response's
	} {
		budget := memory.NewBudget(c.limit)
		r := newRig(t, path.Options{Budget: budget})
		held := []int64{}
		r.submit = func(q *infer.Request) error {
			r.respond(q, r.response(false), r.response(true))
			held = append(held, budget.Reserved())
			return nil
		}
		err := r.infer(t, "tokens")
		if errs.Of(err) != c.want || len(r.sent) != c.sent {
			t.Errorf("with %d bytes: %v, sent %v", c.limit, err, r.sent)
		}
		if c.want == "" && held[0] != 8 {
			t.Errorf("%d bytes were held by two responses, want 8", held[0])
		}
	}
}

// A sink that fails ends the request, and the responses that it has not taken are released.
func TestASinkThatFailsCancelsTheRequest(t *testing.T) {
	r := newRig(t, path.Options{Budget: memory.NewBudget(100)})
	gone := errors.New("gone")
	r.submit = func(q *infer.Request) error {
		r.respond(q, r.response(false), r.response(false)) // and more to come
		return nil
	}
	r.send = func(*infer.Response) error { return gone }
	if err := r.infer(t, "tokens"); !errors.Is(err, gone) || len(r.sent) != 1 || len(r.canceled) != 1 {
		t.Errorf("%v, sent %v, canceled %v", err, r.sent, r.canceled)
	}
}

func TestErrorsAreCountedAsTheirClientsSeeThem(t *testing.T) {
	var logged []string
	m := &meter{}
	p := path.New(nil, path.Protocol{}, path.Options{Meter: m, Log: func(method string, err error) { logged = append(logged, method+": "+err.Error()) }})
	for _, err := range []error{errs.New(errs.ModelNotFound, "no m"), errors.New("password is 1234")} {
		m.texts = append(m.texts, p.Visible("infer", err).Msg)
	}
	want := &meter{[]errs.Reason{errs.ModelNotFound, errs.Bug}, []string{"no m", "internal error"}}
	if diff := cmp.Diff(want, m, cmp.AllowUnexported(meter{})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"infer: password is 1234"}, logged); diff != "" {
		t.Error(diff)
	}
}

type meter struct {
	failed []errs.Reason
	texts  []string
}

func (m *meter) Failed(r errs.Reason) { m.failed = append(m.failed, r) }
func (*meter) Ended(*path.Outcome)    {}

// A client that does not read cannot keep its request beyond the deadline.
func TestDeadlinesPassWhileTheSinkBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, path.Options{})
		r.submit = func(q *infer.Request) error {
			r.respond(q, r.response(false)) // and more to come
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r.send = func(*infer.Response) error {
			<-ctx.Done()
			synctest.Wait()
			if len(r.canceled) != 1 {
				t.Errorf("canceled %v while the client does not read", r.canceled)
			}
			return nil
		}
		c := r.call(core.InferenceAPI, "tokens")
		c.Body = body{r, c}
		if err := r.Infer(ctx, c); errs.Of(err) != errs.DeadlineCompute || len(r.sent) != 1 || len(r.canceled) != 1 {
			t.Errorf("%v, sent %v, canceled %v", err, r.sent, r.canceled)
		}
	})
}
