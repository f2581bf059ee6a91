package gateway_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway"
)

// loads records what it is asked to load and unload.
type loads struct{ asked []string }

func (l *loads) Load(_ context.Context, model, config string, files map[string][]byte) error {
	l.asked = append(l.asked, fmt.Sprintf("load %s %s %d files", model, config, len(files)))
	return nil
}

func (l *loads) Unload(_ context.Context, model string, dependents bool) error {
	l.asked = append(l.asked, fmt.Sprintf("unload %s %t", model, dependents))
	return nil
}

func TestModelsOfTheProcessReachOthersAndTheRepository(t *testing.T) {
	repository := &loads{}
	h := startWith(t, gateway.Deps{Bus: openBus(t, bus.Config{Lease: time.Hour}), Repository: repository}, nil)
	h.serveModel()
	for model, want := range map[string]bool{"m": true, "other": false} {
		if ready, err := h.gateway.ModelReady(model, ""); ready != want || err != nil {
			t.Errorf("%s is ready: %t, %v", model, ready, err)
		}
	}
	if err := h.gateway.LoadModel(t.Context(), "a", "{}", map[string][]byte{"1/model.py": nil}); err != nil {
		t.Error(err)
	}
	if err := h.gateway.LoadModel(t.Context(), "b", "", nil); err != nil {
		t.Error(err)
	}
	if err := h.gateway.UnloadModel(t.Context(), "a", true); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"load a {} 1 files", "load b  0 files", "unload a true"}, repository.asked); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	responses := make(chan *infer.Response, 1)
	h.gateway.Call(&infer.Call{Model: "m", Inputs: []infer.Tensor{
		{Name: "x", Datatype: tensor.Int32, Shape: tensor.Shape{1, 2}, Data: tensor.InHeap([]byte("12345678"))},
	}}, func(r *infer.Response) { responses <- r })
	r := <-responses
	if data, err := r.Outputs[0].Data.Bytes(); r.Err != nil || err != nil || string(data) != "12345678" {
		t.Errorf("%q, %v, %v", data, r.Err, err)
	}
	r.Release()
}

// A worker may load models before the gateway has its lease.
func TestModelsAreRefusedBeforeTheGatewayRuns(t *testing.T) {
	b := openBus(t, bus.Config{Lease: time.Hour})
	defer b.Close()
	config := gateway.Default()
	g, err := gateway.New(config, gateway.Deps{Bus: b, Clock: mono.New(), Pool: tensor.NewPool(0), Metrics: prometheus.NewRegistry(), Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	called := errs.Reason("none")
	g.Call(&infer.Call{Model: "m"}, func(r *infer.Response) { called = errs.Of(r.Err) })()
	ready, err := g.ModelReady("m", "")
	for what, reason := range map[string]errs.Reason{
		"call": called, "load": errs.Of(g.LoadModel(t.Context(), "m", "", nil)), "unload": errs.Of(g.UnloadModel(t.Context(), "m", false)),
	} {
		if reason != errs.ModelNotReady {
			t.Errorf("%s ends with %q", what, reason)
		}
	}
	if ready || err != nil {
		t.Errorf("ready: %t, %v", ready, err)
	}
}
