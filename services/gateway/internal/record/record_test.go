package record_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/recording"
	"github.com/nereid-serving/nereid/libs/tensor"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/record"
	"github.com/nereid-serving/nereid/services/gateway/internal/requests"
)

// engine is the way of inferences of the models m and n, whose body and sink it is. It answers
// with the input, unless it holds the requests.
type engine struct {
	*record.Recordings
	budget *memory.Budget
	path   *path.Path
	table  *requests.Table
	held   func(*infer.Request) // nil to answer

	size     int
	sequence infer.Sequence
}

func newEngine(limit int64) *engine {
	clock := mono.New()
	e := &engine{budget: memory.NewBudget(limit), table: requests.New(1), size: 1000}
	e.Recordings = record.New(record.Deps{Allowed: true, Server: "g", Budget: e.budget, Now: clock.Now, Wall: clock.Wall})
	g := core.New(core.ServerInfo{}, core.Deps{Dispatcher: e, Requests: e.table, Clock: clock, Pool: tensor.NewPool(0)})
	var models []*core.Model
	for _, name := range []string{"m", "n"} {
		models = append(models, &core.Model{Name: name, Versions: []*core.Version{{
			Ref: infer.ModelRef{Name: name, Version: 1}, State: infer.Ready,
			Config: &modelconfig.Config{Name: name, Inputs: []modelconfig.IO{{Name: "X", Datatype: tensor.Uint8, Dims: tensor.Shape{-1}}}},
		}}})
	}
	g.Update(core.NewSnapshot(1, true, models))
	e.path = path.New(g, path.Protocol{}, path.Options{Protocol: "grpc", Observers: []path.Observer{e.Observer()}})
	return e
}

func (e *engine) Cancel(infer.RequestID) {}
func (e *engine) Submit(r *infer.Request) error {
	if e.held != nil {
		e.held(r)
		return nil
	}
	e.answer(r)
	return nil
}

func (e *engine) answer(r *infer.Request) {
	out := infer.Tensor{Name: "Y", Datatype: tensor.Uint8, Shape: r.Inputs[0].Shape, Data: r.Inputs[0].Data.Retain()}
	e.table.Respond(&infer.Response{Work: r.Work, Final: true, Outputs: []infer.Tensor{out}})
	r.Release()
}

func (e *engine) Receive() error             { return nil }
func (e *engine) Send(*infer.Response) error { return nil }

// call is an inference of a model.
type call struct {
	path.Call
	*engine
}

func (c *call) Decode() error {
	c.Call.Request.Inputs = []infer.Tensor{{Name: "X", Datatype: tensor.Uint8, Shape: tensor.Shape{int64(c.size)}, Data: tensor.InHeap(make([]byte, c.size))}}
	c.Call.Request.Sequence = c.sequence
	return nil
}

func (e *engine) infer(t *testing.T, model string) {
	t.Helper()
	c := &call{engine: e}
	c.Call = path.Call{API: core.InferenceAPI, Model: model, Body: c, Sink: c}
	if err := e.path.Infer(t.Context(), &c.Call); err != nil {
		t.Error(err)
	}
}

// start starts a recording. It ends when the returned function is called, which gives all of it.
func (e *engine) start(t *testing.T, o record.Options, out io.ReadWriter) func() (*recording.Recording, error) {
	t.Helper()
	o.MaxBytes, o.Duration = max(o.MaxBytes, 1), max(o.Duration, time.Hour)
	if o.MaxBytes == 1 {
		o.MaxBytes = 1 << 40
	}
	if o.Share == 0 {
		o.Share = 1
	}
	started, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := e.Record(context.Background(), o, func() { close(started) }, out, func() error { return nil })
		ended <- err
	}()
	<-started
	return func() (*recording.Recording, error) {
		e.Stop()
		if err := <-ended; err != nil {
			return nil, err
		}
		return recording.Read(out)
	}
}

// Requests whose copies find no memory, or no room before a client that does not read, are served
// and counted as lost. Nothing stays charged.
func TestARecordingTakesNoMoreThanThereIs(t *testing.T) {
	for name, limit := range map[string]int64{"of the budget": recording.Memory + 5<<20, "of its queue": 1 << 40} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(limit)
			e.size = 1 << 20
			var out bytes.Buffer
			gate := &gated{ReadWriter: &out, open: make(chan struct{})}
			end := e.start(t, record.Options{Answers: true}, gate)
			const requests = 100
			most := int64(0)
			for range requests {
				e.infer(t, "m")
				most = max(most, e.budget.Reserved())
			}
			close(gate.open)
			all, err := end()
			if err != nil {
				t.Fatal(err)
			}
			if s := all.Summary; s.Lost == 0 || s.Lost+s.Requests != requests || len(all.Requests) != int(s.Requests) || s.Requests == 0 {
				t.Errorf("%v of %d, and %d are there", s, requests, len(all.Requests))
			}
			if bound := min(limit, recording.Memory+64<<20) + 1<<20; most > bound {
				t.Errorf("%d bytes were charged, want %d at most", most, bound)
			}
			if n := e.budget.Reserved(); n != 0 {
				t.Errorf("%d bytes are charged at the end", n)
			}
		})
	}
}

// gated is a client that reads nothing until it is open.
type gated struct {
	io.ReadWriter
	open chan struct{}
}

func (g *gated) Write(p []byte) (int, error) {
	<-g.open
	return g.ReadWriter.Write(p)
}

// A client that goes ends its recording, and what it held is released.
func TestAClientThatGoesEndsItsRecording(t *testing.T) {
	gone := errors.New("gone")
	e := newEngine(1 << 30)
	ctx, cancel := context.WithCancelCause(t.Context())
	started, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := e.Record(ctx, record.Options{Share: 1, MaxBytes: 1 << 30, Duration: time.Hour}, func() { close(started) }, io.Discard, func() error { return nil })
		ended <- err
	}()
	<-started
	e.infer(t, "m")
	cancel(gone)
	if err := <-ended; !errors.Is(err, gone) {
		t.Error(err)
	}
	e.infer(t, "m")
	if n := e.budget.Reserved(); n != 0 {
		t.Errorf("%d bytes are charged at the end", n)
	}
}

// Of sequences a share is recorded, each whole.
func TestSequencesAreRecordedWhole(t *testing.T) {
	e := newEngine(1 << 30)
	var out bytes.Buffer
	end := e.start(t, record.Options{Share: 0.5}, &out)
	const sequences, steps = 200, 5
	for step := range steps {
		for id := range uint64(sequences) {
			e.sequence = infer.Sequence{ID: id + 1, Start: step == 0, End: step == steps-1}
			e.infer(t, "m")
		}
	}
	all, err := end()
	if err != nil {
		t.Fatal(err)
	}
	count := make(map[int64]int)
	for _, r := range all.Requests {
		var q inference.ModelInferRequest
		if err := proto.Unmarshal(r.GetRequest(), &q); err != nil {
			t.Fatal(err)
		}
		count[q.GetParameters()["sequence_id"].GetInt64Param()]++
	}
	for id, n := range count {
		if n != steps {
			t.Errorf("sequence %d has %d of %d requests", id, n, steps)
		}
	}
	if n := len(count); n < sequences/4 || n > sequences*3/4 {
		t.Errorf("%d of %d sequences were recorded, with a share of a half", n, sequences)
	}
}

func TestPatternsChooseModels(t *testing.T) {
	e := newEngine(1 << 30)
	var out bytes.Buffer
	end := e.start(t, record.Options{Models: []string{"x", "[n-z]"}}, &out)
	for _, model := range []string{"m", "n", "m"} {
		e.infer(t, model)
	}
	all, err := end()
	if err != nil || len(all.Requests) != 1 {
		t.Fatalf("%v: %v", err, all)
	}
	var q inference.ModelInferRequest
	if err := proto.Unmarshal(all.Requests[0].GetRequest(), &q); err != nil || q.GetModelName() != "n" {
		t.Errorf("%v: %v", err, &q)
	}
}

// A recording whose time is over waits a moment for the ends of its requests.
func TestTheEndsOfTheLastRequestsAreRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(1 << 30)
		held := make(chan *infer.Request, 2)
		e.held = func(r *infer.Request) { held <- r }
		var out bytes.Buffer
		var summary *recording.Summary
		done := make(chan struct{})
		go func() {
			defer close(done)
			summary, _ = e.Record(t.Context(), record.Options{Share: 1, MaxBytes: 1 << 30, Duration: time.Minute}, func() {}, &out, func() error { return nil })
		}()
		synctest.Wait()
		for range 2 {
			go e.infer(t, "m")
		}
		synctest.Wait()
		<-time.After(time.Minute + time.Second)
		e.answer(<-held)
		<-time.After(time.Minute)
		<-done
		e.answer(<-held)
		synctest.Wait()
		all, err := recording.Read(&out)
		if err != nil || summary.Ended != "duration" || len(all.Requests) != 2 {
			t.Fatalf("%v: %v, %v", err, summary, all)
		}
		if ends := slices.DeleteFunc(all.Requests, func(r recording.Request) bool { return r.End == nil }); len(ends) != 1 {
			t.Errorf("%d requests have ended, want that which did in time", len(ends))
		}
		if errs.Of(err) != "" || e.budget.Reserved() != 0 {
			t.Errorf("%d bytes are charged", e.budget.Reserved())
		}
	})
}
