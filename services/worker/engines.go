package worker

import (
	"sync"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/echo"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/onnxruntime"
)

// engines are the backends by name. Each is opened when a model first needs
// it, so that one whose library is missing fails its own models alone. They
// are safe for concurrent use.
type engines struct {
	open map[string]func() (backend.Backend, error)

	mu     sync.Mutex
	opened map[string]backend.Backend // guarded by mu
}

// Backends names the backends that workers have, in the order of names.
func Backends() []string { return []string{"echo", "onnxruntime"} }

// newEngines is called while no instance is open, which changes the number of
// threads that run Go.
func newEngines(c Config, d Deps) *engines {
	threads := c.cores()
	return &engines{
		open: map[string]func() (backend.Backend, error){
			"echo": func() (backend.Backend, error) { return new(echo.Backend), nil },
			"onnxruntime": func() (backend.Backend, error) {
				o, err := c.backendOptions()
				if err != nil {
					return nil, err
				}
				o.Pool, o.Threads = d.Pool, threads
				b, err := onnxruntime.Open(c.OnnxRuntimeLibrary, o)
				if err != nil {
					return nil, err
				}
				return b, nil
			},
		},
		opened: make(map[string]backend.Backend),
	}
}

// backend returns the named backend. The lock is held while one is opened:
// what waits for it needs that backend too, or is one of few loads.
func (e *engines) backend(name string) (backend.Backend, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if b, ok := e.opened[name]; ok {
		return b, nil
	}
	open, ok := e.open[name]
	if !ok {
		return nil, errs.New(errs.LoadFailed, "%s", modelconfig.UnknownBackend(name, Backends()))
	}
	b, err := open()
	if err != nil {
		return nil, err
	}
	e.opened[name] = b
	return b, nil
}

// close closes the opened backends. No model is open.
func (e *engines) close(log *zap.Logger) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, b := range e.opened {
		if err := b.Close(); err != nil {
			log.Error("backend not closed", append(obs.Err(err), zap.String("backend", name))...)
		}
	}
	clear(e.opened)
}
