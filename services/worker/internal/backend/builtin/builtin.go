// Package builtin is the shared code of backends that run no engine and read no
// files: reading their parameters and inputs, and pauses that can end early.
package builtin

import (
	"slices"
	"strconv"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// LoadFailed refuses a configuration, for the reason that the format and its
// arguments say.
func LoadFailed(c *modelconfig.Config, format string, args ...any) error {
	return errs.New(errs.LoadFailed, "load model '%s': "+format, append([]any{c.Name}, args...)...).WithModel(c.Name)
}

// Duration reads a parameter of a configuration: a whole number of units, at most
// 2^32-1; 0 without it.
func Duration(c *modelconfig.Config, key string, unit time.Duration) (time.Duration, error) {
	n, err := Count(c, key)
	return time.Duration(n) * unit, err
}

// Count reads a parameter of a configuration: a whole number, at most 2^32-1; 0
// without it.
func Count(c *modelconfig.Config, key string) (uint32, error) {
	text, ok := c.Parameters[key]
	if !ok {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, LoadFailed(c, "parameter %s is %q: give a whole number from 0 to 4294967295", key, text)
	}
	return uint32(n), nil
}

// Input returns an input of a request and its bytes, which are the request's.
func Input(r *infer.Request, name string) (*infer.Tensor, []byte, error) {
	i := slices.IndexFunc(r.Inputs, func(in infer.Tensor) bool { return in.Name == name })
	if i < 0 {
		return nil, nil, errs.New(errs.InputMissing, "the model's backend needs the input %s", name)
	}
	data, err := r.Inputs[i].Data.Bytes()
	return &r.Inputs[i], data, err
}

// Canceled returns a channel that is closed when nobody waits for the batch.
func Canceled(b backend.Batch) <-chan struct{} {
	canceled := make(chan struct{})
	b.OnCancel(func() { close(canceled) })
	return canceled
}

// Pause waits for d, or until stop is closed.
func Pause(d time.Duration, stop <-chan struct{}) {
	if d == 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-stop:
	}
}
