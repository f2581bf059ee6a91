package registry

import (
	"cmp"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/registry/internal/repo"
)

// Config is the registry's configuration.
type Config struct {
	// Repositories are the model repositories: directories with one directory
	// per model. At least one; a model's name may be in one of them only.
	Repositories []string
	// Models says how the models' configurations are read.
	Models Models
	// Holder is the id of this replica, unique among them. It is shown as the
	// leader's.
	Holder string
	// WorkerGrace is for how long the assignment of a vanished worker is kept.
	// A worker that was only cut off from the store finds it on its return
	// and goes on; shorter than a worker's lease, a pause of the store makes
	// workers unload and load again.
	WorkerGrace time.Duration
	// Retry is how long to wait after a failed write, scan or election.
	Retry time.Duration
}

// Models says how the models' configurations are read.
type Models struct {
	// ConfigName chooses configs/NAME.pbtxt of the models that have it; the
	// others are read from config.pbtxt.
	ConfigName string
	// Strict takes nothing from model files: every model needs a config.pbtxt
	// that lists its inputs and outputs.
	Strict bool
	// MaxBatchSize is for ONNX models that can batch and whose configuration
	// does not say up to what size; 0 is 4, as in Triton.
	MaxBatchSize int
}

// Default gives the configuration without its repositories.
func Default() Config {
	return Config{Holder: "registry", WorkerGrace: 15 * time.Second, Retry: time.Second}
}

// Validate reports the first setting that cannot be used, with the reason
// config_invalid.
func (c Config) Validate() error {
	if len(c.Repositories) == 0 {
		return errs.New(errs.ConfigInvalid, "no model repository is given: name a directory with --model-repository")
	}
	for i, root := range c.Repositories {
		if scheme, _, ok := strings.Cut(root, "://"); ok {
			return errs.New(errs.ConfigInvalid, "model repository %s: %s is not supported, give a local directory", root, scheme)
		}
		if root == "" {
			return errs.New(errs.ConfigInvalid, "a model repository has no name: give a directory")
		}
		if slices.ContainsFunc(c.Repositories[:i], func(other string) bool { return filepath.Clean(other) == filepath.Clean(root) }) {
			return errs.New(errs.ConfigInvalid, "model repository %s is given twice: give it once", root)
		}
	}
	if err := c.Models.validate(); err != nil {
		return err
	}
	if c.Holder == "" {
		return errs.New(errs.ConfigInvalid, "the registry needs a holder id: give each replica one of its own")
	}
	if c.WorkerGrace <= 0 || c.Retry <= 0 {
		return errs.New(errs.ConfigInvalid, "the worker grace is %v and the retry pause %v: both must be more than 0", c.WorkerGrace, c.Retry)
	}
	return nil
}

func (m Models) validate() error {
	if m.ConfigName != "" && (strings.ContainsAny(m.ConfigName, `/\`) || !filepath.IsLocal(m.ConfigName)) {
		return errs.New(errs.ConfigInvalid, "model configuration name %q: give the name of a file in configs without .pbtxt, such as h100", m.ConfigName)
	}
	if m.MaxBatchSize < 0 || m.MaxBatchSize > math.MaxInt32 {
		return errs.New(errs.ConfigInvalid, "the default maximum batch size is %d: want 0 or more", m.MaxBatchSize)
	}
	return nil
}

func (m Models) reading() repo.Reading {
	return repo.Reading{ConfigName: m.ConfigName, Strict: m.Strict, MaxBatchSize: int32(m.MaxBatchSize)}
}

// Deps are what the registry needs of its process.
type Deps struct {
	// Bus is the store. Its buckets are made by Run.
	Bus *bus.Bus
	// Log may be nil.
	Log *zap.Logger
}

func (d Deps) logger() *zap.Logger { return cmp.Or(d.Log, zap.NewNop()) }
