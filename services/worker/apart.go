package worker

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// apart refuses calls between models where the gateway is another process.
type apart struct{}

// Call refuses a call.
func (apart) Call(c *infer.Call, receive func(*infer.Response)) (cancel func()) {
	c.Release()
	receive(&infer.Response{Final: true, Err: errs.New(errs.Unsupported, "calls between models are served in one process only").WithModel(c.Model)})
	return func() {}
}
