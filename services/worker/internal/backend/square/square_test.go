package square_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/square"
)

// batch keeps what the responses to its one request say, and when they came. What it
// does not have is not called.
type batch struct {
	backend.Batch
	request  *infer.Request
	began    time.Time
	room     chan struct{}
	canceled bool // read and set by one goroutine at a time
	stop     func()
	log      []string
	done     chan struct{}
}

// newBatch has a request of n, for which the client has room for so many responses.
func newBatch(n int32, room int, shape ...int64) *batch {
	data := tensor.InHeap(binary.LittleEndian.AppendUint32(nil, uint32(n)))
	b := &batch{
		request: &infer.Request{BatchSize: 1, Inputs: []infer.Tensor{{Name: "IN", Datatype: tensor.Int32, Shape: shape, Data: data}}},
		began:   time.Now(), room: make(chan struct{}, room), done: make(chan struct{}),
	}
	for range room {
		b.room <- struct{}{}
	}
	return b
}

func (b *batch) Requests() []*infer.Request { return []*infer.Request{b.request} }
func (b *batch) Canceled(int) bool          { return b.canceled }
func (b *batch) OnCancel(stop func())       { b.stop = stop }
func (b *batch) OnCancelEach(func(int))     {}
func (b *batch) Room(int) <-chan struct{}   { return b.room }
func (*batch) InputDone()                   {}
func (*batch) InferDone()                   {}
func (*batch) Executed()                    {}
func (*batch) Free()                        {}
func (b *batch) Done()                      { close(b.done) }

func (b *batch) Respond(_ int, r *infer.Response) {
	text := fmt.Sprint(time.Since(b.began))
	for _, o := range r.Outputs {
		data, _ := o.Data.Bytes()
		text += fmt.Sprintf(" %s%v=%d", o.Name, o.Shape, int32(binary.LittleEndian.Uint32(data)))
	}
	if r.Err != nil {
		text += " " + r.Err.Error()
	}
	if r.Final {
		text += " final"
	}
	b.log = append(b.log, text)
	r.Release()
}

func config() *modelconfig.Config {
	return &modelconfig.Config{
		Name: "m", Decoupled: true, Parameters: map[string]string{},
		Inputs:  []modelconfig.IO{{Name: "IN", Datatype: tensor.Int32, Dims: tensor.Shape{1}}},
		Outputs: []modelconfig.IO{{Name: "OUT", Datatype: tensor.Int32, Dims: tensor.Shape{1}}},
	}
}

func open(t *testing.T, parameters map[string]string) backend.Instance {
	t.Helper()
	c := config()
	c.Parameters = parameters
	m, err := new(square.Backend).Load(t.Context(), backend.Version{Config: c})
	if err != nil {
		t.Fatal(err)
	}
	in, err := m.NewInstance(t.Context(), backend.InstanceSpec{})
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func TestAsManyResponsesAsTheNumber(t *testing.T) {
	for name, tt := range map[string]struct {
		parameters map[string]string
		batch      func() *batch
		want       []string
	}{
		"some":        {nil, func() *batch { return newBatch(3, 3, 1) }, []string{"0s OUT[1]=3", "0s OUT[1]=3", "0s OUT[1]=3", "0s final"}},
		"none":        {nil, func() *batch { return newBatch(0, 0, 1) }, []string{"0s final"}},
		"less":        {nil, func() *batch { return newBatch(-2, 0, 1) }, []string{"0s IN is -2: it is the number of responses final"}},
		"of a row":    {nil, func() *batch { return newBatch(1, 1, 1, 1) }, []string{"0s OUT[1,1]=1", "0s final"}},
		"slow":        {map[string]string{"CUSTOM_INFER_DELAY_NS": "30", "CUSTOM_OUTPUT_DELAY_NS": "4"}, func() *batch { return newBatch(2, 2, 1) }, []string{"34ns OUT[1]=2", "68ns OUT[1]=2", "68ns final"}},
		"empty ones":  {map[string]string{"CUSTOM_EMPTY_COUNT": "2"}, func() *batch { return newBatch(3, 3, 1) }, []string{"0s OUT[1]=3", "0s final"}},
		"all empty":   {map[string]string{"CUSTOM_EMPTY_COUNT": "9"}, func() *batch { return newBatch(3, 3, 1) }, []string{"0s final"}},
		"a failure":   {map[string]string{"CUSTOM_FAIL_COUNT": "2"}, func() *batch { return newBatch(3, 3, 1) }, []string{"0s OUT[1]=3", "0s simulated failure final"}},
		"two of each": {map[string]string{"CUSTOM_FAIL_COUNT": "2", "CUSTOM_EMPTY_COUNT": "2"}, func() *batch { return newBatch(5, 5, 1) }, []string{"0s OUT[1]=5", "0s simulated failure final"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := tt.batch()
				open(t, tt.parameters).Execute(b)
				<-b.done
				if d := cmp.Diff(tt.want, b.log); d != "" {
					t.Error(d)
				}
			})
		})
	}
}

func TestOnlyTheOutputThatIsAskedFor(t *testing.T) {
	b := newBatch(1, 1, 1)
	b.request.Outputs = []infer.Output{{Name: "none"}}
	open(t, nil).Execute(b)
	<-b.done
	if len(b.log) != 2 || strings.Contains(b.log[0], "OUT") {
		t.Errorf("%q", b.log)
	}
}

func TestSeveralNumbersAreRefused(t *testing.T) {
	b := newBatch(1, 0, 2, 1)
	b.request.BatchSize = 2
	open(t, nil).Execute(b)
	<-b.done
	if len(b.log) != 1 || !strings.Contains(b.log[0], "unexpected shape for IN input") {
		t.Errorf("%q", b.log)
	}
}

// A client that reads nothing is waited for, and a request that is canceled meanwhile
// ends.
func TestResponsesWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBatch(1<<30, 2, 1)
		open(t, nil).Execute(b)
		synctest.Wait()
		if len(b.log) != 2 {
			t.Fatalf("%q, want two responses", b.log)
		}
		b.canceled = true
		b.stop()
		close(b.room)
		<-b.done
		if len(b.log) != 3 || !strings.HasSuffix(b.log[2], "final") {
			t.Errorf("%q", b.log)
		}
	})
}

func TestCancellationEndsTheDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBatch(1, 1, 1)
		open(t, map[string]string{"CUSTOM_INFER_DELAY_NS": "4000000000"}).Execute(b)
		synctest.Wait()
		b.canceled = true
		b.stop()
		<-b.done
		if len(b.log) != 1 || !strings.HasPrefix(b.log[0], "0s") {
			t.Errorf("%q", b.log)
		}
	})
}

func TestLoadRefuses(t *testing.T) {
	for want, edit := range map[string]func(*modelconfig.Config){
		"add  model_transaction_policy { decoupled: true }":       func(c *modelconfig.Config) { c.Decoupled = false },
		"expected 1 input, got 0":                                 func(c *modelconfig.Config) { c.Inputs = nil },
		"expected first output tensor name to be OUT, got x":      func(c *modelconfig.Config) { c.Outputs[0].Name = "x" },
		"expected IN shape to be [1], got [-1]":                   func(c *modelconfig.Config) { c.Inputs[0].Dims = tensor.Shape{-1} },
		"expected OUT datatype to be INT32, got TYPE_STRING":      func(c *modelconfig.Config) { c.Outputs[0].Datatype = tensor.Bytes },
		`parameter CUSTOM_FAIL_COUNT is "x": give a whole number`: func(c *modelconfig.Config) { c.Parameters["CUSTOM_FAIL_COUNT"] = "x" },
		`parameter CUSTOM_OUTPUT_DELAY_NS is "1ms"`:               func(c *modelconfig.Config) { c.Parameters["CUSTOM_OUTPUT_DELAY_NS"] = "1ms" },
	} {
		c := config()
		edit(c)
		if _, err := new(square.Backend).Load(t.Context(), backend.Version{Config: c}); errs.Of(err) != errs.LoadFailed || !strings.Contains(err.Error(), want) {
			t.Errorf("Load = %v, want load_failed with %q", err, want)
		}
	}
}
