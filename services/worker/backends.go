package worker

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/procs"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/accumulator"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/echo"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/identity"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/onnxruntime"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/python"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/repeat"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/square"
)

// drivers returns the built-in backends, ordered by name.
func drivers(c Config, d Deps, based map[string]python.Based) []backend.Driver {
	return []backend.Driver{
		accumulator.DynaSequence(), echo.Driver(), identity.Driver(), onnxruntime.Driver(c.OnnxRuntimeLibrary), onnxruntime.Plans(),
		python.Driver(python.Deps{Log: d.Log, Metrics: d.Metrics, Based: based}), repeat.Driver(), accumulator.Sequence(), square.Driver(),
	}
}

// pythonCode is the file with the code of a Python-based backend.
const pythonCode = "model.py"

// pythonBased finds the code of the Python-based backends in a backend directory, if there is one, by name. As in
// Triton, built-in backends take precedence.
func pythonBased(directory string) (map[string]string, error) {
	if directory == "" {
		return nil, nil
	}
	directory, err := filepath.Abs(directory) // models run elsewhere
	var entries []os.DirEntry
	if err == nil {
		entries, err = os.ReadDir(directory)
	}
	if err != nil {
		return nil, errs.Wrap(errs.ConfigInvalid, err, "--backend-directory cannot be read: name a directory of Python-based backends, or leave it out: %v", err)
	}
	files := make(map[string]string)
	for _, e := range entries {
		file := filepath.Join(directory, e.Name(), pythonCode)
		if s, err := os.Stat(file); err == nil && s.Mode().IsRegular() && !backends.Get(e.Name()).BuiltIn {
			files[e.Name()] = file
		}
	}
	return files, nil
}

// Backends returns the names of the backends that workers with this backend directory have, in order. The directory
// may be empty for none. The error has the reason config_invalid.
func Backends(directory string) ([]string, error) {
	based, err := pythonBased(directory)
	return names(based), err
}

// names returns the names of the built-in backends and of the others.
func names[B any](others map[string]B) []string {
	return slices.Compact(slices.Sorted(slices.Values(slices.AppendSeq(backends.BuiltIn(), maps.Keys(others)))))
}

// based returns the Python-based backends with their settings. Its error has the reason config_invalid.
func (c Config) based() (map[string]python.Based, error) {
	files, err := pythonBased(c.BackendDirectory)
	if err != nil {
		return nil, err
	}
	settings, err := c.backendSettings()
	if err != nil {
		return nil, err
	}
	all, err := config.Named("backend-config", c.BackendConfig)
	if err != nil {
		return nil, err
	}
	based := make(map[string]python.Based, len(files))
	for _, name := range backends.Hosted() {
		given := make(map[string]string)
		if backends.Get(name).CompletesTensors {
			maps.Copy(given, all[""]) // settings that such backends share
		}
		maps.Copy(given, settings[name])
		based[name] = python.Based{Settings: given}
	}
	for name, file := range files {
		based[name] = python.Based{File: file, Settings: settings[name]}
	}
	return based, nil
}

// backendSettings returns the settings of backends by name. Common settings are for the registry, which uses them to
// complete configurations.
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

// checkBackends returns what is wrong with the settings of backends. It ignores settings of backends that do not
// exist: unusedSettings reports those.
func (c Config) checkBackends() error {
	all, err := c.backendSettings()
	if err != nil {
		return err
	}
	based, err := c.based()
	if err != nil {
		return err
	}
	for _, d := range drivers(c, Deps{}, based) {
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

// lacking says, by backend, why backends cannot use the worker's GPU, as far as that is known without opening them.
func (c Config) lacking() map[string]string {
	if c.Device.Kind != modelconfig.KindGPU {
		return nil
	}
	cause := onnxruntime.WithoutCUDA(c.OnnxRuntimeLibrary)
	if cause == "" {
		return nil
	}
	return map[string]string{backends.ONNXRuntime: cause, backends.Plans: cause}
}

// unusedSettings returns the names of backends that have settings but do not exist.
func (c Config) unusedSettings() (unused []string) {
	there, _ := Backends(c.BackendDirectory) // validated, as the settings
	all, _ := c.backendSettings()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !slices.Contains(there, name) {
			unused = append(unused, name)
		}
	}
	return unused
}

// openBackends holds the backends by name. Each is opened when a model first needs it, so that a backend whose
// library is missing fails only its own models. It is safe for concurrent use.
type openBackends struct {
	drivers     []backend.Driver
	based       map[string]python.Based
	settings    map[string]map[string]string
	environment backend.Environment

	// calls is read-locked by each use outside of loads, and locked to end all uses.
	calls sync.RWMutex
	ended bool // guarded by calls
	// ending is done when the worker stops; end cancels it.
	ending context.Context
	end    context.CancelFunc

	mu     sync.Mutex
	opened map[string]backend.Backend // guarded by mu
}

// newBackends must be called while no instance is open: open instances change the number of threads that run Go.
func newBackends(c Config, d Deps, threads *procs.Procs, pinned *backend.PinnedMemory, failed func(error)) *openBackends {
	settings, _ := c.backendSettings() // validated, as the policies
	policies, _ := c.hostPolicies()
	based, _ := c.based()
	ending, end := context.WithCancel(context.Background())
	return &openBackends{
		drivers: drivers(c, d, based), based: based, settings: settings, ending: ending, end: end,
		environment: backend.Environment{
			Pool: d.Pool, Cores: c.cores(), HostPolicies: policies, Control: d.Control, RunInC: threads.Add,
			Pinned: pinned, DeviceFailed: failed,
		},
		opened: make(map[string]backend.Backend),
	}
}

// engine returns the name of the backend that runs the models of the named backend.
func (o *openBackends) engine(name string) string {
	if _, ok := o.based[name]; ok {
		return backends.Python
	}
	if name == backends.Plans {
		return backends.ONNXRuntime
	}
	return name
}

// has reports whether the named backend exists.
func (o *openBackends) has(name string) bool {
	return slices.ContainsFunc(o.drivers, func(d backend.Driver) bool { return d.Name == o.engine(name) })
}

// backend returns the named backend; for a Python-based one that is the Python backend. It holds the lock while it
// opens a backend: whoever waits for the lock needs the same backend, or is one of few loads.
func (o *openBackends) backend(name string) (backend.Backend, error) {
	name = o.engine(name)
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
	return nil, errs.New(errs.LoadFailed, "%s", modelconfig.UnknownBackend(name, names(o.based)))
}

// use calls a function that uses backends, unless the worker is stopping. The function's context ends when the worker
// does.
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

// stop ends current uses, and prevents new ones.
func (o *openBackends) stop() {
	o.end()
	o.calls.Lock()
	defer o.calls.Unlock()
	o.ended = true
}

// close ends the uses and closes the opened backends. No model may be open.
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
