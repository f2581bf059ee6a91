package core_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/cache"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/requests"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// refusal is an error as a caller sees it.
type refusal struct {
	Reason errs.Reason
	Text   string
}

func refusalOf(err error) refusal {
	if err == nil {
		return refusal{}
	}
	e := errs.From(err)
	return refusal{e.Reason, e.Msg}
}

// version makes one version of a model.
func version(model string, number int64, state infer.InstanceState) *core.Version {
	return &core.Version{
		Ref: infer.ModelRef{Name: model, Version: number, Generation: 1}, Config: &modelconfig.Config{Name: model, Backend: "onnxruntime"}, State: state,
	}
}

func ready(model string, config *modelconfig.Config) *core.Version {
	config.Name = model
	return &core.Version{Ref: infer.ModelRef{Name: model, Version: 1}, Config: config, State: infer.Ready}
}

func io(name string, d tensor.Datatype, dims ...int64) modelconfig.IO {
	return modelconfig.IO{Name: name, Datatype: d, Dims: dims}
}

func optional(io modelconfig.IO) modelconfig.IO {
	io.Optional = true
	return io
}

// dispatcher stands for a scheduler that does what the test says.
type dispatcher struct {
	submit func(*infer.Request) error
	cancel func(infer.RequestID)
}

func (d *dispatcher) Submit(r *infer.Request) error { return d.submit(r) }
func (d *dispatcher) Cancel(id infer.RequestID)     { d.cancel(id) }

// harness is a gateway, its dispatcher and its pending table.
type harness struct {
	*core.Gateway
	*dispatcher
	source
	table *requests.Table
}

// Infer executes a request of a model that gives one response.
func (h *harness) Infer(ctx context.Context, v *core.Version, r *infer.Request) (*infer.Response, *core.Version, error) {
	if err := core.Check(v, r); err != nil {
		r.Release()
		return nil, v, err
	}
	var x core.Execution
	defer x.Close()
	if err := x.Admit(h.Gateway, v, r); err != nil {
		r.Release()
		return nil, v, err
	}
	x.Dispatch(r)
	p, err := x.Next(ctx)
	return p, x.Version(), err
}

func newGateway(t *testing.T, models ...*core.Model) *harness {
	t.Helper()
	h := &harness{table: requests.New(9), dispatcher: &dispatcher{
		submit: func(r *infer.Request) error { t.Errorf("%v was submitted", r.Work); return nil },
		cancel: func(id infer.RequestID) { t.Errorf("%v was cancelled", id) },
	}}
	h.source.missing = make(map[string]error)
	h.Gateway = core.New(core.ServerInfo{Name: "nereid", Version: "1", Extensions: []string{"e"}},
		core.Deps{
			Dispatcher: h.dispatcher, Statistics: h.of, Requests: h.table, Clock: mono.New(), Pool: tensor.NewPool(0),
			Cache:             cache.New(nil, func(string, infer.CacheUse) {}),
			StatisticsMissing: func(pool string, err error) { h.source.missing[pool] = err },
		})
	h.Update(core.NewSnapshot(5, true, models))
	return h
}

// input makes an input tensor of n zero bytes, or of the strings given.
func input(name string, d tensor.Datatype, shape tensor.Shape, n int, strings ...string) infer.Tensor {
	data := make([]byte, n)
	for _, s := range strings {
		data = tensor.AppendBytes(data, s)
	}
	return infer.Tensor{Name: name, Datatype: d, Shape: shape, Data: tensor.InHeap(data)}
}
