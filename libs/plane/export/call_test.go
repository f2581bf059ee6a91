package export_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// models are a gateway's, as the calls of other models reach them.
type models struct {
	call    func(c *infer.Call, receive func(*infer.Response)) (cancel func())
	control func(ctx context.Context, what string) (bool, error)
}

func (m *models) Call(c *infer.Call, receive func(*infer.Response)) (cancel func()) {
	if c.Model == "there" {
		c.Release()
		receive(&infer.Response{Final: true})
		return func() {}
	}
	return m.call(c, receive)
}

func (m *models) LoadModel(ctx context.Context, model, config string, files map[string][]byte) error {
	sizes := make(map[string]int)
	for path, data := range files {
		sizes[path] = len(bytes.TrimRight(data, "."))
	}
	_, err := m.control(ctx, fmt.Sprint("load ", model, " ", config, " ", sizes))
	return err
}

func (m *models) UnloadModel(ctx context.Context, model string, dependents bool) error {
	_, err := m.control(ctx, fmt.Sprint("unload ", model, " ", dependents))
	return err
}

func (m *models) ModelReady(model, version string) (bool, error) {
	return m.control(context.Background(), fmt.Sprint("ready ", model, " ", version))
}

// parent is a batch of a request of the plane's gateway.
var parent = infer.Parent{Unit: infer.Unit{Request: infer.RequestID{Origin: gatewayEpoch, Number: 1}}}

// receiving are the responses of a call, as they come.
type receiving chan *infer.Response

func (p *plane) callModel(c *infer.Call) (got receiving, cancel func()) {
	got = make(receiving, 1000)
	return got, p.at.Caller().Call(c, func(r *infer.Response) { got <- r })
}

func (g receiving) next(t testing.TB) *infer.Response {
	t.Helper()
	select {
	case r := <-g:
		return r
	case <-time.After(patience):
		t.Fatal("no response has come")
		return nil
	}
}

// end waits for the final response.
func (g receiving) end(t testing.TB) error {
	t.Helper()
	for {
		r := g.next(t)
		final, err := r.Final, r.Err
		if r.Release(); final {
			return err
		}
	}
}

// settled waits until neither side lends anything.
func (p *plane) settled() {
	p.t.Helper()
	p.eventually(func() error {
		if at, from := p.at.Exports.Len(), p.from.Exports.Len(); at+from > 0 {
			return fmt.Errorf("%d buffers are lent by the worker and %d by the gateway", at, from)
		}
		return nil
	})
}

// eventually waits until try has no error.
func (p *plane) eventually(try func() error) {
	p.t.Helper()
	end, tick := time.After(patience), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-end:
			p.t.Fatal(err)
		}
	}
}

// fetched are the bytes of a tensor that the gateway has or can fetch.
func (p *plane) fetched(in infer.Tensor) []byte {
	if in.Data.Place != tensor.Remote {
		data, err := in.Data.Bytes()
		if err != nil {
			p.t.Error(err)
		}
		return bytes.Clone(data)
	}
	came := make(chan []byte, 1)
	p.from.Fetch(in.Data, func(local tensor.Ref, err error) {
		data, _ := local.Bytes()
		if err != nil {
			p.t.Error(err)
		}
		came <- bytes.Clone(data)
		local.Release()
	})
	return <-came
}

// What a model asks of another comes there, and what that answers comes back, whatever
// the size. Nothing is lent in the end.
func TestCallsCrossWithTheirTensors(t *testing.T) {
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			p := newPlane(t, m)
			seen := make(chan *infer.Call, 1)
			p.models.call = func(c *infer.Call, receive func(*infer.Response)) func() {
				seen <- c
				go func() { // inputs are fetched by the stream's reader
					for i, in := range c.Inputs {
						data := p.fetched(in)
						out := p.gateway.tensorOf(t, in.Name, len(data))
						copy(out.Data.Buffer.Bytes(), data)
						receive(&infer.Response{Index: uint32(i), Outputs: []infer.Tensor{out}})
					}
					c.Release()
					receive(&infer.Response{Final: true})
				}()
				return func() {}
			}
			p.connectCalls()
			defer p.stop()
			var inputs []infer.Tensor
			var want [][]byte
			for i, n := range []int{5, 9000, 70_000, 3 << 20} {
				in := p.worker.tensorOf(t, fmt.Sprint("in", i), n)
				inputs, want = append(inputs, in), append(want, bytes.Clone(in.Data.Buffer.Bytes()[:n]))
			}
			deadline := p.clock.Now().Add(time.Hour)
			got, _ := p.callModel(&infer.Call{
				Model: "m", Version: "3", Single: true, ID: "id", Inputs: inputs, Outputs: []infer.Output{{Name: "y"}}, Priority: 2,
				Timeout: time.Second, Trace: "trace", Parent: parent, Tenant: "a", CostClass: "high", Deadline: deadline,
				Parameters: []infer.Parameter{{Key: "k", Value: int64(1)}}, Sequence: infer.Sequence{Key: "s", Start: true},
			})
			for i := range want {
				r := got.next(t)
				if data, err := r.Outputs[0].Data.Bytes(); err != nil || !bytes.Equal(data, want[i]) || r.Index != uint32(i) {
					t.Errorf("response %d has %d other bytes, or %v", r.Index, len(data), err)
				}
				r.Release()
			}
			if err := got.end(t); err != nil {
				t.Error(err)
			}
			c := *<-seen
			if left, _ := c.Deadline.Left(p.clock.Now()); left <= 0 || c.Deadline < deadline {
				t.Errorf("%v of the deadline is left", left)
			}
			c.Inputs, c.Deadline = nil, 0
			if diff := cmp.Diff(infer.Call{
				Model: "m", Version: "3", Single: true, ID: "id", Outputs: []infer.Output{{Name: "y"}}, Priority: 2,
				Timeout: time.Second, Trace: "trace", Parent: parent, Tenant: "a", CostClass: "high",
				Parameters: []infer.Parameter{{Key: "k", Value: int64(1)}}, Sequence: infer.Sequence{Key: "s", Start: true},
			}, c); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			p.settled()
		})
	}
}

// A model that does not read holds back the one that it has called, and no other call.
func TestCallersThatDoNotReadHoldBackWhoAnswersThem(t *testing.T) {
	const responses, window = 200, 32
	p := newPlane(t, modes()[0])
	sent := make(chan int, responses)
	p.models.call = func(c *infer.Call, receive func(*infer.Response)) func() {
		c.Release()
		if c.Model == "short" {
			receive(&infer.Response{Final: true})
			return func() {}
		}
		go func() {
			for i := range responses {
				receive(&infer.Response{Index: uint32(i), Outputs: []infer.Tensor{p.gateway.tensorOf(t, "y", 20_000)}})
				sent <- i
			}
			receive(&infer.Response{Final: true})
		}()
		return func() {}
	}
	p.connectCalls()
	defer p.stop()
	read, came := make(chan bool), make(chan uint32, responses+1)
	p.at.Caller().Call(&infer.Call{Model: "long", Parent: parent}, func(r *infer.Response) {
		came <- r.Index
		r.Release()
		<-read
	})
	for range window - 1 { // after which one more is sent, and has no room behind it
		<-sent
	}
	short, _ := p.callModel(&infer.Call{Model: "short", Parent: parent})
	if err := short.end(t); err != nil {
		t.Error(err)
	}
	if first := <-came; first != 0 || len(came) > 0 || len(sent) > 0 {
		t.Errorf("response %d is the first of a model that has read none, %d more are with it, and %d more have gone", first, len(came), len(sent))
	}
	close(read)
	for i := 1; i < responses; i++ {
		if got := <-came; got != uint32(i) {
			t.Fatalf("response %d came as number %d", got, i)
		}
	}
	<-came
	p.settled()
}

// A call ends with its stream, and the gateway is told by its end.
func TestCallsEndWithTheirStream(t *testing.T) {
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			p := newPlane(t, m)
			canceled := make(chan bool, 1)
			var inputs *infer.Call
			p.models.call = func(c *infer.Call, receive func(*infer.Response)) func() {
				inputs = c
				receive(&infer.Response{Outputs: []infer.Tensor{p.gateway.tensorOf(t, "y", 100_000)}})
				return sync.OnceFunc(func() { canceled <- true })
			}
			p.connectCalls()
			got, _ := p.callModel(&infer.Call{Model: "m", Parent: parent, Inputs: []infer.Tensor{p.worker.tensorOf(t, "x", 100_000)}})
			got.next(t).Release()
			p.stop()
			if err := got.end(t); errs.Of(err) != errs.PeerUnreachable {
				t.Errorf("the call ended with %v", err)
			}
			<-canceled
			inputs.Release()
			p.settled()
			late, cancel := p.callModel(&infer.Call{Model: "m", Parent: parent})
			if err := late.end(t); errs.Of(err) != errs.PeerUnreachable {
				t.Errorf("a call without a stream ended with %v", err)
			}
			cancel()
		})
	}
}

// A canceled call ends with what the gateway says of it, and its inputs are kept until
// they are read no more.
func TestCanceledCallsEndAtTheGateway(t *testing.T) {
	p := newPlane(t, modes()[1])
	inputs := make(chan *infer.Call, 1)
	p.models.call = func(c *infer.Call, receive func(*infer.Response)) func() {
		inputs <- c
		return sync.OnceFunc(func() { receive(&infer.Response{Final: true, Err: errs.New(errs.Canceled, "")}) })
	}
	p.connectCalls()
	defer p.stop()
	got, cancel := p.callModel(&infer.Call{Model: "m", Parent: parent, Inputs: []infer.Tensor{p.worker.tensorOf(t, "x", 100_000)}})
	cancel()
	cancel()
	if err := got.end(t); errs.Of(err) != errs.Canceled {
		t.Errorf("the call ended with %v", err)
	}
	if p.at.Exports.Len() != 1 {
		t.Errorf("%d inputs are lent while one is read", p.at.Exports.Len())
	}
	(<-inputs).Release()
	p.settled()
}

// A call that cannot be made, and an answer that cannot be sent, fail alone.
func TestBadCallsFailAlone(t *testing.T) {
	p := newPlane(t, modes()[2])
	p.models.call = func(c *infer.Call, receive func(*infer.Response)) func() {
		c.Release()
		receive(&infer.Response{Final: true, Parameters: []infer.Parameter{{Key: "k", Value: c.ID}, {Key: "l", Value: map[bool]string{true: "\xff"}[c.Single]}}})
		return func() {}
	}
	p.connectCalls()
	defer p.stop()
	for _, tt := range []struct {
		call   infer.Call
		reason errs.Reason
	}{
		{infer.Call{ID: "\xff"}, errs.InvalidParameter},
		{infer.Call{ID: string(make([]byte, 1<<20))}, errs.InvalidParameter},
		{infer.Call{Single: true}, errs.TransferFailed},
		{infer.Call{}, ""},
	} {
		tt.call.Model, tt.call.Parent = "m", parent
		got, _ := p.callModel(&tt.call)
		if err := got.end(t); errs.Of(err) != tt.reason {
			t.Errorf("ended with %v, want %q", err, tt.reason)
		}
	}
}

// A call without a parent goes to a gateway that takes calls, and one at a gateway that
// does not know them is refused.
func TestCallsGoToGatewaysThatTakeThem(t *testing.T) {
	p := newPlane(t, modes()[1])
	p.models.call = func(c *infer.Call, receive func(*infer.Response)) func() {
		c.Release()
		receive(&infer.Response{Final: true})
		return func() {}
	}
	got, _ := p.callModel(&infer.Call{Model: "m"})
	if err := got.end(t); errs.Of(err) != errs.PeerUnreachable {
		t.Errorf("without a gateway it ended with %v", err)
	}
	p.attach()
	old := newRaw(t, p.peer, &nereidv1.TensorHello{Protocol: link.Protocol, Id: "old", Epoch: gatewayEpoch + 1, Stream: 1})
	defer old.close()
	old.next(func(m *nereidv1.TensorMessage) bool { return m.GetCredit() != nil })
	p.connectCalls()
	defer p.stop()
	got, _ = p.callModel(&infer.Call{Model: "m"})
	if err := got.end(t); err != nil {
		t.Error(err)
	}
	of := parent
	of.Unit.Request.Origin = gatewayEpoch + 1
	got, _ = p.callModel(&infer.Call{Model: "m", Parent: of})
	if err := got.end(t); errs.Of(err) != errs.Unsupported {
		t.Errorf("at a gateway of another release it ended with %v", err)
	}
}

// connectCalls begins a stream, and waits until the worker can make calls over it.
func (p *plane) connectCalls() {
	p.t.Helper()
	p.attach()
	p.connect()
	p.eventually(func() error {
		got, _ := p.callModel(&infer.Call{Model: "there", Parent: parent})
		return got.end(p.t)
	})
}

// What models have others do comes to the gateway with its files.
func TestModelsControlModels(t *testing.T) {
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			p := newPlane(t, m)
			said := make(chan string, 1)
			p.models.control = func(_ context.Context, what string) (bool, error) {
				said <- what
				if what == "ready n 2" {
					return false, errs.New(errs.ModelNotFound, "no n")
				}
				return true, nil
			}
			p.connectCalls()
			defer p.stop()
			c := p.at.Caller()
			files := map[string][]byte{"1/a": nil, "1/b": []byte("text"), "1/c": bytes.Repeat([]byte("c"), 1<<20)}
			if err := errors.Join(c.LoadModel(t.Context(), "m", "{}", files)); err != nil {
				t.Error(err)
			}
			want := "load m {} map[1/a:0 1/b:4 1/c:1048576]"
			if got := <-said; got != want {
				t.Errorf("%s, want %s", got, want)
			}
			if err := c.UnloadModel(t.Context(), "m", true); err != nil || <-said != "unload m true" {
				t.Error(err)
			}
			if ready, err := c.ModelReady("m", "2"); !ready || err != nil || <-said != "ready m 2" {
				t.Error(ready, err)
			}
			if _, err := c.ModelReady("n", "2"); errs.Of(err) != errs.ModelNotFound {
				t.Error(err)
			}
			p.settled()
		})
	}
}

// A control ends with its stream, and with who waits for it.
func TestControlsEnd(t *testing.T) {
	for name, end := range map[string]func(stop, leave func()){
		"with the stream":       func(stop, _ func()) { stop() },
		"with who waits for it": func(_, leave func()) { leave() },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlane(t, modes()[1])
			begun, ended := make(chan bool), make(chan bool)
			p.models.control = func(ctx context.Context, _ string) (bool, error) {
				close(begun)
				<-ctx.Done()
				close(ended)
				return false, context.Cause(ctx)
			}
			p.connectCalls()
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			got := make(chan error, 1)
			go func() {
				got <- p.at.Caller().LoadModel(ctx, "m", "", map[string][]byte{"f": make([]byte, 100_000)})
			}()
			<-begun
			stop := sync.OnceFunc(p.stop)
			end(stop, leave)
			if err := <-got; errs.Of(err) != errs.PeerUnreachable && errs.Of(err) != errs.Canceled {
				t.Errorf("ended with %v", err)
			}
			<-ended
			p.settled()
			stop()
		})
	}
}

// A gateway that says what it may not say of calls ends its stream.
func TestMalformedCallsEndTheStream(t *testing.T) {
	for name, m := range map[string]*nereidv1.TensorMessage{
		"a response to no call": {Message: &nereidv1.TensorMessage_CallResponse{CallResponse: &nereidv1.CallResponse{Call: 7}}},
		"inputs of no call":     {Message: &nereidv1.TensorMessage_CallTaken{CallTaken: &nereidv1.CallTaken{Call: 7}}},
		"the end of no control": {Message: &nereidv1.TensorMessage_ControlDone{ControlDone: &nereidv1.ControlDone{Control: 7}}},
		"a call of a gateway":   {Message: &nereidv1.TensorMessage_Call{Call: &nereidv1.Call{Call: 7}}},
		"control of a worker":   {Message: &nereidv1.TensorMessage_Control{Control: &nereidv1.Control{Control: 7}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlane(t, modes()[2])
			p.attach()
			r := newRaw(t, p.peer, &nereidv1.TensorHello{Protocol: link.Protocol, Id: "gateway", Epoch: gatewayEpoch, Stream: 1, TakesCalls: true})
			defer r.close()
			r.send(m)
			for {
				if _, err := r.stream.Recv(); err != nil {
					if got := link.Cause(err); errs.Of(got) != errs.PeerMalformed {
						t.Errorf("the stream ended with %v", got)
					}
					return
				}
			}
		})
	}
}
