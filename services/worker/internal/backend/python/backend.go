package python

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/python"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/python/stub"
)

// Backend runs Python models.
type Backend struct {
	environment backend.Environment
	settings    map[string]settings // by the names of the backend and of those that are based on it
	based       map[string]Based
	log         *zap.Logger
	metrics     *metrics
	starter     *stub.Starter
	user        *runsAs
	// dir is the backend's own directory: Nereid's package and what environments are
	// unpacked to.
	dir string

	mu       sync.Mutex
	checked  map[string]bool   // interpreters that run the package; guarded by mu
	unpacked map[string]string // directories of environments by what they hold; guarded by mu
	cores    map[int]int       // how many stubs with a bound of processors have each; guarded by mu
}

func open(e backend.Environment, d Deps) (*Backend, error) {
	all, err := readAll(e.Settings, d.Based)
	if err != nil {
		return nil, err
	}
	for name, s := range all {
		for _, key := range s.idle {
			d.Log.Warn("a setting of a backend has no meaning here", zap.String("backend", name), zap.String("setting", key))
		}
	}
	user, err := findUser(all[backends.Python].user)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "nereid-python-")
	if err != nil {
		return nil, errs.Wrap(errs.LoadFailed, err, "the python backend needs a directory for its files: %v", err)
	}
	b := &Backend{
		environment: e, settings: all, based: maps.Clone(d.Based), log: d.Log, dir: dir, user: user,
		checked: make(map[string]bool), unpacked: make(map[string]string), cores: make(map[int]int),
	}
	err = os.CopyFS(b.packageDir(), python.Files())
	if err == nil {
		err = user.own(dir)
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, errs.Wrap(errs.LoadFailed, err, "the python backend cannot unpack its files to %s: %v", dir, err)
	}
	for name, based := range b.based {
		if based.File == "" {
			based.File = filepath.Join(b.packageDir(), "nereid", "backends", name, "model.py")
			b.based[name] = based
		}
	}
	if b.metrics, err = newMetrics(d.Metrics); err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	if b.starter, err = stub.NewStarter(filepath.Join(b.packageDir(), "nereid", "guard.py"), !all[backends.Python].inherit); err != nil {
		d.Log.Warn("models have rights that they do not need", zap.Error(err))
	}
	return b, nil
}

func (b *Backend) packageDir() string { return filepath.Join(b.dir, "package") }

// Close ends what is left of stubs, and removes the backend's files.
func (b *Backend) Close() error {
	b.starter.Close()
	b.metrics.close()
	return os.RemoveAll(b.dir)
}

// Load checks that there is a model and an interpreter for it. The code runs in its
// instances.
func (b *Backend) Load(ctx context.Context, v backend.Version) (backend.Model, error) {
	m, err := newModel(b, v)
	if err != nil {
		return nil, err
	}
	if err := m.findInterpreter(ctx); err != nil {
		return nil, err
	}
	return m, nil
}

// interpreterVariable names the Python of the backend where no setting does.
const interpreterVariable = "NEREID_PYTHON"

// interpreter finds the Python of models without an environment of their own.
func (s settings) findInterpreter() (string, error) {
	name := s.interpreter
	if name == "" {
		name = os.Getenv(interpreterVariable)
	}
	if name == "" {
		name = "python3"
	}
	path, err := exec.LookPath(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return "", errs.Wrap(errs.LibraryMissing, err, "the python backend finds no interpreter: install Python 3.8 or newer with numpy as python3, or name one by --backend-config=python,%s=FILE: %v",
			interpreterSetting, err)
	}
	return path, nil
}

// try is what an interpreter has to run.
const try = `import sys
if sys.version_info < (3, 8):
    sys.exit("Python %d.%d ` + tooOld + `" % sys.version_info[:2])
import numpy`

const tooOld = "is too old"

// check makes sure that an interpreter, which a setting names, can run stubs.
func (b *Backend) check(ctx context.Context, interpreter, setting string, environment []string) error {
	b.mu.Lock()
	defer b.mu.Unlock() // while it runs: whoever waits needs the same
	if b.checked[interpreter] {
		return nil
	}
	c := exec.CommandContext(ctx, interpreter, "-c", try)
	c.Env, c.SysProcAttr = environment, &syscall.SysProcAttr{Credential: b.user.process()}
	if out, err := c.CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		cause := lines[len(lines)-1]
		if cause == "" {
			cause = err.Error()
		}
		fix := fmt.Sprintf("install numpy there (%s -m pip install numpy), or name another by %s", interpreter, setting)
		if strings.HasSuffix(cause, tooOld) {
			fix = "name another by " + setting
		}
		return errs.Wrap(errs.LibraryMissing, fmt.Errorf("%w: %s", err, cause),
			"the python backend cannot use %s, which has to be Python 3.8 or newer with numpy: %s: %s", interpreter, fix, cause)
	}
	b.checked[interpreter] = true
	return nil
}
