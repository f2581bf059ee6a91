package registry

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/blob"
	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/registry/core"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
	"github.com/nereid-serving/nereid/services/registry/internal/repo"
)

// Config configures a registry. A field with a name is a flag, and a setting of
// that name in files and in the environment; the others keep what the struct
// held before the flags were read, which should be [Default].
type Config struct {
	// Repositories are directories with one directory per model, on local disks
	// or as the URLs that package blob reads. At least one.
	Repositories []string `name:"model-repository" aliases:"model-store" sep:"none" placeholder:"DIR" group:"Models" help:"Model repository: a directory, or s3://BUCKET/PATH, s3://HOST:PORT/BUCKET/PATH, gs://BUCKET/PATH or as://ACCOUNT/CONTAINER/PATH; repeat the flag for several. Required."`
	// Control says when models are loaded.
	Control Control `name:"model-control-mode" default:"none" enum:"none,poll,explicit" group:"Models" help:"When models are loaded: none loads all of them at the start; poll also follows changes of the repositories; explicit loads the models in --load-model and load calls."`
	// Policy is a file with the policy of all gateways; empty is none.
	Policy string `name:"cluster-policy" placeholder:"FILE" group:"Tenants" help:"Policy of all gateways without a --policy of their own. A changed file is published again; one with errors changes nothing."`
	// Poll is how often the repositories are read again under [ControlPoll].
	Poll Seconds `name:"repository-poll-secs" default:"15" group:"Models" help:"Interval of reading the repositories under --model-control-mode=poll, in seconds; 0 is once an hour."`
	// LoadModels are the models that the start loads under [ControlExplicit];
	// "*" alone is all of them. Other modes load all and allow no names.
	LoadModels []string `name:"load-model" sep:"none" placeholder:"NAME" group:"Models" help:"Model to load at the start under --model-control-mode=explicit; repeat the flag for several, or give * for all."`
	// Namespacing has models of one name in several repositories served beside
	// each other, distinguished by their repositories; without it such a name
	// serves nothing.
	Namespacing config.Switch `name:"model-namespacing" default:"false" group:"Models" help:"Serve models with the same name from several repositories, identified by their repository."`
	// PoolModels and PoolLabels are the models and the workers of pools, which
	// have schedulers of their own. The pool default is there in any case.
	PoolModels []string `name:"pool-models" sep:"none" placeholder:"POOL=MODEL,..." group:"Models" help:"Models that run in a pool of workers with a scheduler of its own, unless their configurations name one; repeat the flag for several pools."`
	PoolLabels []string `name:"pool-labels" sep:"none" placeholder:"POOL=KEY=VALUE,..." group:"Models" help:"Labels that a pool's workers must carry; repeat the flag for several pools."`
	// ConfigName chooses configs/NAME.pbtxt of the models that have it; the
	// others are read from config.pbtxt.
	ConfigName string `name:"model-config-name" placeholder:"NAME" group:"Models" help:"Read configs/NAME.pbtxt of the models that have it, instead of config.pbtxt."`
	// AllowModelCode takes files given through the load API also for backends
	// that execute them.
	AllowModelCode config.Switch `name:"allow-model-code" default:"false" group:"Models" help:"Let load calls include files for backends that execute them, such as python: clients that may load models can then run programs on the workers."`
	// NoAutoComplete and StrictConfig both take nothing from model files.
	NoAutoComplete bool          `name:"disable-auto-complete-config" group:"Models" help:"Do not complete configurations from model files: each model needs a config.pbtxt that lists its inputs and outputs."`
	StrictConfig   config.Switch `name:"strict-model-config" default:"false" group:"Models" help:"Older form of --disable-auto-complete-config."`

	// Backends are those of the workers, so that a model of another gets a
	// problem; nil is unknown.
	Backends []string `kong:"-"`
	// MaxBatchSize is for ONNX models that can batch and whose configuration
	// does not say up to what size; 0 has them not batch.
	MaxBatchSize int `kong:"-"`
	// Artifacts is a directory for files that are given through the load API.
	// It is made when it is needed; empty allows none.
	Artifacts string `kong:"-"`
	// ShareArtifacts has these files reach workers of other hosts, through the
	// store; else they read the directory.
	ShareArtifacts bool `kong:"-"`
	// FileQuietPeriod is how long files must have been left alone for a poll to take
	// them as they are; younger ones are taken when two scans find the same.
	FileQuietPeriod time.Duration `kong:"-"`
	// ObjectQuietPeriod is for how long the objects of a model in a store must stay as they
	// are before it is read, in whatever way it is asked for.
	ObjectQuietPeriod time.Duration `kong:"-"`
	// Holder is the id of this replica, unique among them. It is shown as the
	// leader's.
	Holder string `kong:"-"`
	// Address is where this replica's gRPC for the other services listens, as
	// host:port or unix:path: see [Registry.RegisterControl]. It is empty in one
	// process.
	Address string `kong:"-"`
	// Version is the release, as others see it.
	Version string `kong:"-"`
	// WorkerGrace is for how long the assignment of a vanished worker is kept.
	// A worker that was only cut off from the store finds it on its return
	// and goes on; shorter than a worker's lease, a pause of the store makes
	// workers unload and load again.
	WorkerGrace time.Duration `kong:"-"`
	// Retry is how long to wait after a failed write, scan or election.
	Retry time.Duration `kong:"-"`
}

// Seconds is a duration that a flag gives in whole seconds.
type Seconds time.Duration

// UnmarshalText reads a number of seconds.
func (s *Seconds) UnmarshalText(text []byte) error {
	n, err := strconv.ParseInt(string(text), 10, 32)
	if err != nil {
		return fmt.Errorf("want a number of seconds, not %q", text)
	}
	*s = Seconds(time.Duration(n) * time.Second)
	return nil
}

// String returns the number of seconds.
func (s Seconds) String() string {
	return strconv.FormatFloat(time.Duration(s).Seconds(), 'f', -1, 64)
}

const (
	// maxPoll is a year.
	maxPoll = Seconds(365 * 24 * time.Hour)
	// rarely stands for a poll of 0, as with Triton.
	rarely = Seconds(time.Hour)
)

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
		Control: ControlNone, Poll: Seconds(15 * time.Second), FileQuietPeriod: 2 * time.Second, ObjectQuietPeriod: 3 * time.Second,
		Holder: "registry", WorkerGrace: 15 * time.Second, Retry: time.Second, MaxBatchSize: modelconfig.DefaultMaxBatchSize,
	}
}

// Complete reports, with the reason config_invalid, that there is no repository. It is
// apart from Validate for programs that find repositories after their flags are read.
func (c Config) Complete() error {
	if len(c.Repositories) == 0 {
		return errs.New(errs.ConfigInvalid, "no model repository: give --model-repository=DIR")
	}
	return nil
}

// Validate reports the first setting that cannot be used, with the reason
// config_invalid.
func (c Config) Validate() error {
	for _, root := range c.Repositories {
		if err := checkURL(root); err != nil {
			return err
		}
		if root == "" {
			return errs.New(errs.ConfigInvalid, "a model repository has no name: give a directory")
		}
	}
	for _, validate := range []func() error{c.validateModels, c.validateControl, c.validatePools} {
		if err := validate(); err != nil {
			return err
		}
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
	pools, err := c.pools()
	if err != nil {
		return err
	}
	models := make(map[string]string)
	for _, pool := range pools {
		if !infer.ValidPool(pool.Name) {
			return errs.New(errs.ConfigInvalid, "pool %q: give each pool a name without blanks, slashes, commas and =", pool.Name)
		}
		for _, model := range pool.Models {
			if other, ok := models[model]; ok {
				return errs.New(errs.ConfigInvalid, "model %s is given to the pools %s and %s: give it to one", model, other, pool.Name)
			}
			models[model] = pool.Name
		}
	}
	return nil
}

func (c Config) validateModels() error {
	if c.ConfigName != "" && (strings.ContainsAny(c.ConfigName, `/\`) || !filepath.IsLocal(c.ConfigName)) {
		return errs.New(errs.ConfigInvalid, "model configuration name %q: give the name of a file in configs without .pbtxt, such as h100", c.ConfigName)
	}
	if c.MaxBatchSize < 0 || c.MaxBatchSize > math.MaxInt32 {
		return errs.New(errs.ConfigInvalid, "the default maximum batch size is %d: want 0 or more", c.MaxBatchSize)
	}
	return nil
}

// poll is the time between polls.
func (c Config) poll() time.Duration { return time.Duration(cmp.Or(c.Poll, rarely)) }

// Timeouts of a leadership.
const (
	// gatewayAckTimeout is for how long an update waits for a gateway to report what it knows
	// of the workers. One that is alive and does not may have stopped writing, and must not
	// hold up the others.
	gatewayAckTimeout = 5 * time.Second
	// lagTimeout is for how long what was replaced stays loaded for a gateway or scheduler
	// that is alive and does not apply the change.
	lagTimeout = 30 * time.Second
	// loadTimeout bounds how long a caller waits for a load. It is longer than an engine for
	// a GPU takes to build.
	loadTimeout = time.Hour
	// longestRetryPause bounds how long a content whose load failed for a cause that may pass
	// waits for the next try.
	longestRetryPause = 5 * time.Minute
	// tornReads is how often a load reads files that change meanwhile.
	tornReads = 5
)

// core is the configuration of a leadership's core.
func (c Config) core(pools publish.Pools, epoch uint64) core.Config {
	return core.Config{
		Poll: c.Control == ControlPoll, Explicit: c.Control == ControlExplicit, PollEvery: c.poll(),
		LoadModels: c.LoadModels, LoadAll: slices.Contains(c.LoadModels, everyModel), Namespacing: c.Namespacing.On, Pools: pools, Epoch: epoch,
		Sweeps: c.Artifacts != "", FileQuietPeriod: c.FileQuietPeriod, ObjectQuietPeriod: c.ObjectQuietPeriod,
		WorkerGrace: c.WorkerGrace, LossGrace: bus.LossGrace, Retry: c.Retry, LongestRetry: longestRetryPause,
		AckTimeout: gatewayAckTimeout, LagTimeout: lagTimeout, LoadTimeout: loadTimeout, Reads: tornReads,
	}
}

func (c Config) validateControl() error {
	switch {
	case c.policyProblem() != nil:
		return c.policyProblem()
	case c.Control != ControlNone && c.Control != ControlPoll && c.Control != ControlExplicit:
		return errs.New(errs.ConfigInvalid, "--model-control-mode is %q: want none, poll or explicit", c.Control)
	case c.Poll < 0 || c.Poll > maxPoll:
		return errs.New(errs.ConfigInvalid, "--repository-poll-secs is %v: want 0 to %v", c.Poll, maxPoll)
	case c.FileQuietPeriod < 0 || c.ObjectQuietPeriod < 0:
		return errs.New(errs.ConfigInvalid, "files settle after %v, and objects have arrived after %v: want 0 or more", c.FileQuietPeriod, c.ObjectQuietPeriod)
	case len(c.LoadModels) > 0 && c.Control != ControlExplicit:
		return errs.New(errs.ConfigInvalid, "--load-model is given with --model-control-mode=%s: use --model-control-mode=explicit, or leave --load-model out", c.Control)
	case len(c.LoadModels) > 1 && slices.Contains(c.LoadModels, everyModel):
		return errs.New(errs.ConfigInvalid, "--load-model=* loads all models: give no other --load-model beside it")
	}
	for _, name := range c.LoadModels {
		if strings.TrimSpace(name) == "" || !isModelName(name) {
			return errs.New(errs.ConfigInvalid, "--load-model=%s: no model can have that name: give the name of a model's directory, or *", name)
		}
	}
	return nil
}

// roots returns the absolute paths of the repositories, and the URLs of those in
// stores. A repository that is given twice is one, as for Triton.
func (c Config) roots() ([]string, error) {
	var roots []string
	for _, given := range c.Repositories {
		root, err := filepath.Abs(given)
		if err != nil {
			return nil, errs.Wrap(errs.ConfigInvalid, err, "model repository %s: %v", given, err)
		}
		if blob.Remote(given) {
			at, err := blob.Parse(given)
			if err != nil {
				return nil, err
			}
			root = at.String()
		}
		if !slices.Contains(roots, root) {
			roots = append(roots, root)
		}
	}
	return roots, nil
}

// watchPeriod is how often a registry that watches looks at all files: soon enough
// for who has saved one, and nothing to a machine with the models of a
// developer. It needs no service of the file system, which those of containers
// and networks lack.
const watchPeriod = 200 * time.Millisecond

// Watch has the registry follow local repositories at once, in place of polls. A
// file that is being written is taken when two looks find the same. Errors have
// the reason config_invalid.
func (c *Config) Watch() error {
	if c.Control == ControlExplicit {
		return errs.New(errs.ConfigInvalid, "--watch loads models by itself: leave --model-control-mode=explicit out")
	}
	if i := slices.IndexFunc(c.Repositories, blob.Remote); i >= 0 {
		return errs.New(errs.ConfigInvalid, "--watch follows local directories alone: use --model-control-mode=poll for %s", c.Repositories[i])
	}
	c.Control, c.Poll, c.FileQuietPeriod, c.Retry = ControlPoll, Seconds(watchPeriod), watchPeriod, watchPeriod
	return nil
}

func (c Config) reading() repo.Options {
	return repo.Options{
		Namespacing: c.Namespacing.On, ConfigName: c.ConfigName, Strict: c.NoAutoComplete || c.StrictConfig.On,
		Backends: c.Backends, MaxBatchSize: int32(c.MaxBatchSize), FileQuietPeriod: c.FileQuietPeriod, ObjectQuietPeriod: c.ObjectQuietPeriod,
	}
}

// pools reads PoolModels and PoolLabels, in the order in which they are named first.
func (c Config) pools() (publish.Pools, error) {
	var pools publish.Pools
	named := func(flag, text string) (*publish.Pool, string, error) {
		name, rest, ok := strings.Cut(text, "=")
		if !ok || name == "" || rest == "" {
			return nil, "", errs.New(errs.ConfigInvalid, "--%s=%s: want a pool, = and a list", flag, text)
		}
		i := slices.IndexFunc(pools, func(p publish.Pool) bool { return p.Name == name })
		if i < 0 {
			i, pools = len(pools), append(pools, publish.Pool{Name: name})
		}
		return &pools[i], rest, nil
	}
	for _, text := range c.PoolModels {
		pool, list, err := named("pool-models", text)
		if err != nil {
			return nil, err
		}
		pool.Models = append(pool.Models, strings.Split(list, ",")...)
	}
	for _, text := range c.PoolLabels {
		pool, list, err := named("pool-labels", text)
		if err != nil {
			return nil, err
		}
		labels, ok := modelconfig.ParseLabels(list)
		if !ok || pool.Labels != nil {
			return nil, errs.New(errs.ConfigInvalid, "--pool-labels=%s: want POOL=KEY=VALUE, several separated by commas, once for each pool", text)
		}
		pool.Labels = labels
	}
	return pools, nil
}

// SetMaxBatchSize takes the batch size by which configurations are completed
// from the values of --backend-config. What is set for the one backend goes
// before what is set for all. Errors have the reason config_invalid.
func (c *Config) SetMaxBatchSize(backendConfig []string) error {
	given, err := config.Named("backend-config", backendConfig)
	if err != nil {
		return err
	}
	for _, backend := range slices.Concat([]string{""}, backends.WithHeader()) {
		value, ok := given[backend][modelconfig.MaxBatchSizeSetting]
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil || n < 0 {
			return errs.New(errs.ConfigInvalid, "--backend-config=%s,%s=%s: it is a number of rows, 0 or more", backend, modelconfig.MaxBatchSizeSetting, value)
		}
		c.MaxBatchSize = int(n)
	}
	return nil
}

// Deps are what the registry needs of its process.
type Deps struct {
	// Bus is the store. Its buckets are made by Run.
	Bus *bus.Bus
	// Queues is how the schedulers are asked for [Registry.Status]; nil is not to
	// ask them.
	Queues Queues
	// Complete is how workers are had to run the code of models that complete
	// their own configurations; nil is not to run it.
	Complete Complete
	// Log may be nil.
	Log *zap.Logger
}

func (d Deps) logger() *zap.Logger { return cmp.Or(d.Log, zap.NewNop()) }

// policyProblem is what is wrong with the policy at the start.
func (c *Config) policyProblem() error {
	if c.Policy == "" {
		return nil
	}
	_, err := readPolicy(c.Policy)
	return err
}
