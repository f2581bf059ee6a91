package registry

import (
	"cmp"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/blob"
	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/registry/internal/publish"
	"github.com/nereid-serving/nereid/services/registry/internal/repo"
)

// Config is the registry's configuration.
type Config struct {
	// Repositories are the model repositories: directories with one directory
	// per model, on local disks or as the URLs that package blob reads. At least
	// one.
	Repositories []string
	// Namespacing has models of one name in several repositories served beside
	// each other, told apart by their repositories; without it such a name
	// serves nothing.
	Namespacing bool
	// Models says how the models' configurations are read.
	Models Models
	// Control says when models are loaded.
	Control Control
	// Poll is how often the repositories are read again under [ControlPoll].
	Poll time.Duration
	// LoadModels are the models that the start loads under [ControlExplicit];
	// "*" alone is all of them. Other modes load all and allow no names.
	LoadModels []string
	// Artifacts is a directory for files that are given through the load API.
	// It is made when it is needed; empty allows none.
	Artifacts string
	// ShareArtifacts has these files reach workers of other hosts, through the
	// store; else they read the directory.
	ShareArtifacts bool
	// Settle is how long files must have been left alone for a poll to take
	// them as they are; younger ones are taken when two scans find the same.
	Settle time.Duration
	// Arrive is for how long the objects of a model in a store must stay as they
	// are before it is read, in whatever way it is asked for.
	Arrive time.Duration
	// Pools are sets of workers with schedulers of their own. The pool default
	// is there in any case.
	Pools []Pool
	// Holder is the id of this replica, unique among them. It is shown as the
	// leader's.
	Holder string
	// Address is where this replica's gRPC for the other services listens, as
	// host:port or unix:path: see [Registry.RegisterControl]. It is empty in one
	// process.
	Address string
	// Version is the release, as others see it.
	Version string
	// WorkerGrace is for how long the assignment of a vanished worker is kept.
	// A worker that was only cut off from the store finds it on its return
	// and goes on; shorter than a worker's lease, a pause of the store makes
	// workers unload and load again.
	WorkerGrace time.Duration
	// Retry is how long to wait after a failed write, scan or election.
	Retry time.Duration
}

// Pool is a set of workers with a scheduler of their own, and the models that
// run there unless their configurations say otherwise.
type Pool = publish.Pool

// Models says how the models' configurations are read.
type Models struct {
	// ConfigName chooses configs/NAME.pbtxt of the models that have it; the
	// others are read from config.pbtxt.
	ConfigName string
	// Strict takes nothing from model files: every model needs a config.pbtxt
	// that lists its inputs and outputs.
	Strict bool
	// Backends are those of the workers, so that a model of another is told
	// so; nil is not to know.
	Backends []string
	// MaxBatchSize is for ONNX models that can batch and whose configuration
	// does not say up to what size; 0 has them not batch.
	MaxBatchSize int
}

// Control is a way to decide when models are loaded, by its name on the
// command line.
type Control string

// The ways to decide when models are loaded.
const (
	// ControlNone loads all models once, at the start.
	ControlNone Control = "none"
	// ControlPoll follows the repositories.
	ControlPoll Control = "poll"
	// ControlExplicit loads what it is asked to.
	ControlExplicit Control = "explicit"
)

// everyModel stands for all models in LoadModels.
const everyModel = "*"

// Default gives the configuration without its repositories.
func Default() Config {
	return Config{
		Control: ControlNone, Poll: 15 * time.Second, Settle: 2 * time.Second, Arrive: 3 * time.Second,
		Holder: "registry", WorkerGrace: 15 * time.Second, Retry: time.Second,
		Models: Models{MaxBatchSize: modelconfig.DefaultMaxBatchSize},
	}
}

// Validate reports the first setting that cannot be used, with the reason
// config_invalid.
func (c Config) Validate() error {
	if len(c.Repositories) == 0 {
		return errs.New(errs.ConfigInvalid, "no model repository is given: name a directory with --model-repository")
	}
	for i, root := range c.Repositories {
		if err := checkURL(root); err != nil {
			return err
		}
		if root == "" {
			return errs.New(errs.ConfigInvalid, "a model repository has no name: give a directory")
		}
		if slices.ContainsFunc(c.Repositories[:i], func(other string) bool { return filepath.Clean(other) == filepath.Clean(root) }) {
			return errs.New(errs.ConfigInvalid, "model repository %s is given twice: give it once", root)
		}
	}
	if err := cmp.Or(c.Models.validate(), c.validateControl(), c.validatePools()); err != nil {
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

// checkURL reports a URL that names no place in a store. What has no scheme is a
// path.
func checkURL(root string) error {
	if !strings.Contains(root, "://") {
		return nil
	}
	at, err := blob.Parse(root)
	if err != nil {
		return errs.Wrap(errs.ConfigInvalid, err, "model repository %s", errs.From(err).Msg)
	}
	if at.Scheme == "file" {
		return errs.New(errs.ConfigInvalid, "model repository %s: give a local directory as the path %s", root, at.Bucket)
	}
	return nil
}

func (c Config) validatePools() error {
	names, models := make(map[string]bool), make(map[string]string)
	for _, pool := range c.Pools {
		if !infer.ValidPool(pool.Name) || names[pool.Name] {
			return errs.New(errs.ConfigInvalid, "pool %q: give each pool one name, without blanks, slashes, commas and =", pool.Name)
		}
		names[pool.Name] = true
		for _, model := range pool.Models {
			if other, ok := models[model]; ok {
				return errs.New(errs.ConfigInvalid, "model %s is given to the pools %s and %s: give it to one", model, other, pool.Name)
			}
			models[model] = pool.Name
		}
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

func (c Config) validateControl() error {
	switch {
	case c.Control != ControlNone && c.Control != ControlPoll && c.Control != ControlExplicit:
		return errs.New(errs.ConfigInvalid, "--model-control-mode is %q: want none, poll or explicit", c.Control)
	case c.Control == ControlPoll && c.Poll <= 0:
		return errs.New(errs.ConfigInvalid, "--repository-poll-secs is %v: want 1 or more", c.Poll)
	case c.Settle < 0 || c.Arrive < 0:
		return errs.New(errs.ConfigInvalid, "files settle after %v, and objects have arrived after %v: want 0 or more", c.Settle, c.Arrive)
	case len(c.LoadModels) > 0 && c.Control != ControlExplicit:
		return errs.New(errs.ConfigInvalid, "--load-model is given with --model-control-mode=%s: use --model-control-mode=explicit, or leave --load-model out", c.Control)
	case len(c.LoadModels) > 1 && slices.Contains(c.LoadModels, everyModel):
		return errs.New(errs.ConfigInvalid, "--load-model=* loads all models: give no other --load-model beside it")
	}
	for _, name := range c.LoadModels {
		if err := checkName(name); err != nil {
			return errs.Wrap(errs.ConfigInvalid, err, "--load-model=%s: %s", name, errs.From(err).Msg)
		}
	}
	return nil
}

// roots are the absolute paths of the repositories, and the URLs of those in
// stores.
func (c Config) roots() ([]string, error) {
	roots := make([]string, len(c.Repositories))
	for i, given := range c.Repositories {
		if blob.Remote(given) {
			at, err := blob.Parse(given)
			if err != nil {
				return nil, err
			}
			roots[i] = at.String()
			continue
		}
		root, err := filepath.Abs(given)
		if err != nil {
			return nil, errs.Wrap(errs.ConfigInvalid, err, "model repository %s: %v", given, err)
		}
		roots[i] = root
	}
	return roots, nil
}

func (c Config) reading() repo.Reading {
	m := c.Models
	return repo.Reading{Namespacing: c.Namespacing, ConfigName: m.ConfigName, Strict: m.Strict, Backends: m.Backends, MaxBatchSize: int32(m.MaxBatchSize), Settle: c.Settle, Arrive: c.Arrive}
}

// Deps are what the registry needs of its process.
type Deps struct {
	// Bus is the store. Its buckets are made by Run.
	Bus *bus.Bus
	// Queues is how the schedulers are asked for [Registry.Status]; nil is not to
	// ask them.
	Queues Queues
	// Log may be nil.
	Log *zap.Logger
}

func (d Deps) logger() *zap.Logger { return cmp.Or(d.Log, zap.NewNop()) }
