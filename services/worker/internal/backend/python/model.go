package python

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/python/stub"
	"github.com/nereid-serving/nereid/services/worker/internal/cores"
)

// model is a version of a Python model.
type model struct {
	backend *Backend
	version backend.Version
	// file is the code, based whether it is the backend's rather than the model's.
	file        string
	based       bool
	settings    settings
	interpreter string
	environment []string
	limits      limits
	// reshaped are inputs and outputs whose shapes differ from the client's.
	reshaped map[string]*modelconfig.IO
}

func newModel(b *Backend, v backend.Version) (*model, error) {
	m := &model{backend: b, version: v, reshaped: make(map[string]*modelconfig.IO)}
	if err := m.findCode(); err != nil {
		return nil, err
	}
	if err := m.readLimits(); err != nil {
		return nil, err
	}
	for _, list := range [][]modelconfig.IO{v.Config.Inputs, v.Config.Outputs} {
		for i := range list {
			if list[i].HasReshape {
				m.reshaped[list[i].Name] = &list[i]
			}
		}
	}
	return m, nil
}

// findCode finds the code, and the settings that go with it.
func (m *model) findCode() error {
	v, b := m.version, m.backend
	based, ok := b.based[v.Config.Backend]
	if m.based = ok; ok {
		m.file, m.settings = based.File, b.settings[v.Config.Backend]
		if !isFile(m.file) {
			return m.failed("the code of backend %s is gone: put it back to %s", v.Config.Backend, m.file)
		}
		return nil
	}
	name := cmp.Or(v.Config.Filename, "model.py")
	m.file, m.settings = filepath.Join(v.Dir, name), b.settings[backends.Python]
	if !isFile(m.file) {
		return m.failed("there is no file %s in version %d: put the model's code there", name, v.Ref.Version)
	}
	return nil
}

func isFile(path string) bool {
	s, err := os.Stat(path)
	return err == nil && !s.IsDir()
}

func (m *model) failed(format string, args ...any) *errs.Error {
	return errs.New(errs.LoadFailed, "load model '%s': "+format, append([]any{m.version.Config.Name}, args...)...).WithModel(m.version.Config.Name)
}

// findInterpreter sets the interpreter and its environment.
func (m *model) findInterpreter(ctx context.Context) error {
	packages := []string{m.backend.packageDir()}
	own := []string{"PYTHONUNBUFFERED=1"}
	setting := "--backend-config=" + backends.Python + "," + interpreterSetting + "=FILE"
	if path := m.environmentPath(); path != "" {
		e, err := m.backend.findEnvironment(ctx, m.version, path)
		if err != nil {
			return m.failed("%s is %s: %v", environmentParameter, path, err)
		}
		m.interpreter = e.interpreter()
		own, setting = append(own, e.variables()...), environmentParameter
	} else {
		path, err := m.settings.findInterpreter()
		if err != nil {
			return err
		}
		m.interpreter = path
	}
	if given := os.Getenv("PYTHONPATH"); given != "" {
		packages = append(packages, given)
	}
	own = append(own, "PYTHONPATH="+strings.Join(packages, string(os.PathListSeparator)))
	m.environment = m.backend.user.environ(slices.Concat(inherited(), own))
	return m.backend.check(ctx, m.interpreter, setting, m.environment)
}

// environmentPath names the model's environment as its parameter does, or else that
// of its backend; empty is none.
func (m *model) environmentPath() string {
	if path := m.version.Config.Parameters[environmentParameter]; path != "" || !m.based {
		return path
	}
	if archive := filepath.Join(filepath.Dir(m.file), backendEnvironment); isFile(archive) {
		return archive
	}
	return ""
}

// inherited is the worker's environment without what is its own affair.
func inherited() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "NEREID_") || strings.HasPrefix(v, "PYTHONPATH=")
	})
}

// parallelVariable is Triton's: any value but 1 has instances of a version made one after
// another.
const parallelVariable = "TRITON_PARALLEL_INSTANCE_LOADING"

// Separate has instances initialize at the same time.
func (*model) Separate() bool {
	value := os.Getenv(parallelVariable)
	return value == "" || value == "1"
}

// NewInstance starts a stub and has it initialize the model.
func (m *model) NewInstance(ctx context.Context, spec backend.InstanceSpec) (backend.Instance, error) {
	return newInstance(ctx, m, spec)
}

// Close does nothing: what there is belongs to instances.
func (*model) Close() error { return nil }

// Complete has the model complete its configuration, in a stub of its own. The
// registry waits for it with all models, so that its time is bounded.
func (b *Backend) Complete(ctx context.Context, v backend.Version) ([]byte, error) {
	m, err := newModel(b, v)
	if err != nil {
		return nil, err
	}
	if err := m.findInterpreter(ctx); err != nil {
		return nil, err
	}
	spec := backend.InstanceSpec{Name: v.Config.Name}
	limited, cancel := context.WithTimeout(ctx, m.settings.timeout)
	defer cancel()
	in := &instance{model: m, spec: spec, log: m.log(spec), closing: limited, given: limited}
	s, answer, err := in.ask(limited, message{Type: "complete", Config: string(modelconfig.JSON(v.Config.Proto()))})
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return nil, m.failed("auto_complete_config had not returned after %v: raise --backend-config=%s,%s if it needs longer",
			m.settings.timeout, cmp.Or(v.Config.Backend, backends.Python), timeoutSetting)
	}
	if err != nil {
		return nil, err
	}
	s.finalize()
	if answer.Type != stub.Completed {
		return nil, m.failed("the stub answered %s where it was asked to complete the configuration", answer.Type)
	}
	return []byte(answer.Config), nil
}

// message is what begins a stub's work.
type message struct {
	Type      string            `json:"t"`
	Args      map[string]string `json:"args"`
	Dir       string            `json:"dir"`
	Model     string            `json:"model"`
	File      string            `json:"file"`
	Decoupled bool              `json:"decoupled,omitempty"`
	Settings  map[string]string `json:"settings,omitempty"`
	Config    string            `json:"config,omitempty"`
}

// header completes a message.
func (m *model) header(first message, spec backend.InstanceSpec) ([]byte, error) {
	v := m.version
	kind, gpus := "CPU", []int32(nil)
	if spec.Kind == modelconfig.KindGPU {
		kind, gpus = "GPU", []int32{int32(spec.Device)}
	}
	first.Args = map[string]string{
		"model_config": string(modelconfig.JSON(v.Config.Shown(gpus).Proto())), "model_name": v.Ref.Name, "model_version": strconv.FormatInt(v.Ref.Version, 10),
		"model_repository": v.ModelDir, "model_instance_name": spec.Name, "model_instance_kind": kind, "model_instance_device_id": strconv.Itoa(visibleDevice(spec, os.Getenv("CUDA_VISIBLE_DEVICES"))),
	}
	first.Dir, first.Model, first.File = v.Dir, v.ModelDir, m.file
	first.Decoupled, first.Settings = v.Config.Decoupled, m.settings.given
	return json.Marshal(first)
}

// visibleDevice is the number by which CUDA knows an instance's GPU: a MIG device is the only
// one that its worker sees.
func visibleDevice(spec backend.InstanceSpec, visible string) int {
	if strings.HasPrefix(visible, "MIG-") && !strings.Contains(visible, ",") {
		return 0
	}
	return spec.Device
}

// log is the worker's log with the fields of an instance.
func (m *model) log(spec backend.InstanceSpec) *zap.Logger {
	return m.backend.log.With(append(obs.Model(m.version.Ref), zap.String("instance", spec.Name))...)
}

// stubSpec is the stub of an instance.
func (m *model) stubSpec(log *zap.Logger, on cores.Set) stub.Spec {
	return stub.Spec{
		Interpreter: m.interpreter, Environment: m.environment, MemoryBytes: m.limits.memory, Cores: on, User: m.backend.user.process(),
		Line: func(stream, line string) {
			log.Info("output of a model", zap.String("stream", stream), zap.String("text", line))
		},
		Pool: m.backend.environment.Pool,
	}
}
