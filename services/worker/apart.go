package worker

import (
	"context"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// apart refuses what models ask of the gateway where that is another process.
type apart struct{}

// Call refuses a call.
func (apart) Call(c *infer.Call, receive func(*infer.Response)) (cancel func()) {
	c.Release()
	receive(&infer.Response{Final: true, Err: errs.New(errs.Unsupported, "calls between models are served in one process only").WithModel(c.Model)})
	return func() {}
}

// LoadModel refuses a load.
func (apart) LoadModel(_ context.Context, model, _ string, _ map[string][]byte) error {
	return noControl(model)
}

// UnloadModel refuses an unload.
func (apart) UnloadModel(_ context.Context, model string, _ bool) error { return noControl(model) }

// ModelReady refuses to say whether a model is ready.
func (apart) ModelReady(model, _ string) (bool, error) { return false, noControl(model) }

func noControl(model string) error {
	return errs.New(errs.Unsupported, "models control models in one process only").WithModel(model)
}
