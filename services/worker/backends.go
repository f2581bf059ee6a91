package worker

import (
	"context"
	"maps"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/accumulator"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/echo"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/identity"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/onnxruntime"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/python"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/repeat"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/square"
)

// drivers are the backends that are built in, in the order of names.
func drivers(c Config, d Deps) []backend.Driver {
	return []backend.Driver{
		accumulator.DynaSequence(), echo.Driver(), identity.Driver(), onnxruntime.Driver(c.OnnxRuntimeLibrary),
		python.Driver(python.Deps{Log: d.Log, Metrics: d.Metrics}), repeat.Driver(), accumulator.Sequence(), square.Driver(),
	}
}

// Backends names the backends that workers have, in the order of names.
func Backends() []string {
	var names []string
	for _, d := range drivers(Config{}, Deps{}) {
		names = append(names, d.Name)
	}
	return names
}

// backendSettings are the settings of backends by their names. What all have in
// common is the registry's, which completes configurations by it.
func (c Config) backendSettings() (map[string]map[string]string, error) {
	all, err := config.Named("backend-config", c.BackendConfig)
	if err != nil {
		return nil, err
	}
	for key, value := range all[""] {
		if key != modelconfig.MaxBatchSizeSetting {
			return nil, errs.New(errs.ConfigInvalid, "--backend-config=,%s=%s: backends have one setting in common, %s", key, value, modelconfig.MaxBatchSizeSetting)
		}
	}
	delete(all, "")
	return all, nil
}

// checkBackends returns what is wrong with the settings of backends. Those of a
// backend that is not there say nothing: unusedSettings tells them.
func (c Config) checkBackends() error {
	all, err := c.backendSettings()
	if err != nil {
		return err
	}
	for _, d := range drivers(c, Deps{}) {
		settings := all[d.Name]
		if d.Check == nil {
			for key, value := range settings {
				return errs.New(errs.ConfigInvalid, "--backend-config=%s,%s=%s: the backend has no settings", d.Name, key, value)
			}
			continue
		}
		if err := d.Check(settings); err != nil {
			return err
		}
	}
	return nil
}

// unusedSettings names the backends that have settings and are not there.
func (c Config) unusedSettings() (unused []string) {
	there := Backends()
	all, _ := c.backendSettings() // validated
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !slices.Contains(there, name) {
			unused = append(unused, name)
		}
	}
	return unused
}

// openBackends are the backends by name. Each is opened when a model first
// needs it, so that one whose library is missing fails its own models alone.
// They are safe for concurrent use.
type openBackends struct {
	drivers     []backend.Driver
	settings    map[string]map[string]string
	environment backend.Environment

	// calls is held by each use beside the loads, and by the end of all.
	calls sync.RWMutex
	ended bool // guarded by calls
	// ending is done when the worker stops; end makes it so.
	ending context.Context
	end    context.CancelFunc

	mu     sync.Mutex
	opened map[string]backend.Backend // guarded by mu
}

// newBackends is called while no instance is open, which changes the number of
// threads that run Go.
func newBackends(c Config, d Deps) *openBackends {
	settings, _ := c.backendSettings() // validated, as the policies
	policies, _ := c.hostPolicies()
	ending, end := context.WithCancel(context.Background())
	return &openBackends{
		drivers: drivers(c, d), settings: settings, ending: ending, end: end,
		environment: backend.Environment{Pool: d.Pool, Cores: c.cores(), HostPolicies: policies, Control: d.Control},
		opened:      make(map[string]backend.Backend),
	}
}

// backend returns the named backend. The lock is held while one is opened:
// what waits for it needs that backend too, or is one of few loads.
func (o *openBackends) backend(name string) (backend.Backend, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if b, ok := o.opened[name]; ok {
		return b, nil
	}
	for _, d := range o.drivers {
		if d.Name != name {
			continue
		}
		environment := o.environment
		environment.Settings = o.settings[name]
		b, err := d.Open(environment)
		if err != nil {
			return nil, err
		}
		o.opened[name] = b
		return b, nil
	}
	return nil, errs.New(errs.LoadFailed, "%s", modelconfig.UnknownBackend(name, Backends()))
}

// use calls a function that uses backends, unless the worker stops. Its context
// ends when the worker does.
func (o *openBackends) use(ctx context.Context, call func(context.Context) error) error {
	o.calls.RLock()
	defer o.calls.RUnlock()
	if o.ended {
		return errs.New(errs.Draining, "the worker stops and runs no model's code")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(o.ending, cancel)()
	err := call(ctx)
	if err != nil && o.ending.Err() != nil {
		return errs.Wrap(errs.Draining, err, "the worker stopped while it ran the model's code")
	}
	return err
}

// stop ends the uses that are under way, and those to come.
func (o *openBackends) stop() {
	o.end()
	o.calls.Lock()
	defer o.calls.Unlock()
	o.ended = true
}

// close ends the uses and closes the opened backends. No model is open.
func (o *openBackends) close(log *zap.Logger) {
	o.stop()
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, b := range o.opened {
		if err := b.Close(); err != nil {
			log.Error("backend not closed", append(obs.Err(err), zap.String("backend", name))...)
		}
	}
	clear(o.opened)
}
