package registry

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
)

// Settings are a registry's as an operator gives them: its flags, by the names
// that they have in the environment and in files too.
type Settings struct {
	ModelRepository []string      `name:"model-repository" aliases:"model-store" sep:"none" placeholder:"DIR" group:"Models" help:"Model repository: a directory, or s3://BUCKET/PATH, s3://HOST:PORT/BUCKET/PATH, gs://BUCKET/PATH or as://ACCOUNT/CONTAINER/PATH; repeat the flag for several. Required."`
	ControlMode     string        `name:"model-control-mode" default:"none" enum:"none,poll,explicit" group:"Models" help:"When models are loaded: none is all of them at the start; poll follows the repositories as well; explicit is what --load-model and the load API name."`
	PollSecs        int           `name:"repository-poll-secs" default:"15" group:"Models" help:"How often the repositories are read again under --model-control-mode=poll, in seconds."`
	LoadModel       []string      `name:"load-model" sep:"none" placeholder:"NAME" group:"Models" help:"Model to load at the start under --model-control-mode=explicit; repeat the flag for several, or give * for all."`
	Namespacing     config.Switch `name:"model-namespacing" default:"false" group:"Models" help:"Serve models of one name in several repositories beside each other, told apart by their repositories."`
	PoolModels      []string      `name:"pool-models" sep:"none" placeholder:"POOL=MODEL,..." group:"Models" help:"Models that run in a pool of workers with a scheduler of its own, unless their configurations name one; repeat the flag for several pools."`
	PoolLabels      []string      `name:"pool-labels" sep:"none" placeholder:"POOL=KEY=VALUE,..." group:"Models" help:"Labels that a pool's workers must carry; repeat the flag for several pools."`
	ConfigName      string        `name:"model-config-name" placeholder:"NAME" group:"Models" help:"Read configs/NAME.pbtxt of the models that have it, instead of config.pbtxt."`
	NoAutoComplete  bool          `name:"disable-auto-complete-config" group:"Models" help:"Take nothing from model files: each model needs a config.pbtxt that lists its inputs and outputs."`
	StrictConfig    config.Switch `name:"strict-model-config" default:"false" group:"Models" help:"Older form of --disable-auto-complete-config."`
}

// maxPollSecs is a year.
const maxPollSecs = 365 * 24 * 60 * 60

// Validate refuses what [Config] cannot express, with the reason
// config_invalid.
func (s *Settings) Validate() error {
	switch {
	case len(s.ModelRepository) == 0:
		return errs.New(errs.ConfigInvalid, "no model repository: give --model-repository=DIR")
	case s.PollSecs <= 0 || s.PollSecs > maxPollSecs:
		return errs.New(errs.ConfigInvalid, "--repository-poll-secs is %d: want 1 to %d", s.PollSecs, maxPollSecs)
	}
	_, err := s.pools()
	return err
}

// pools reads the pools' settings, in the order in which they are named first.
func (s *Settings) pools() ([]Pool, error) {
	var pools []Pool
	named := func(flag, text string) (*Pool, string, error) {
		name, rest, ok := strings.Cut(text, "=")
		if !ok || name == "" || rest == "" {
			return nil, "", errs.New(errs.ConfigInvalid, "--%s=%s: want a pool, = and a list", flag, text)
		}
		i := slices.IndexFunc(pools, func(p Pool) bool { return p.Name == name })
		if i < 0 {
			i, pools = len(pools), append(pools, Pool{Name: name})
		}
		return &pools[i], rest, nil
	}
	for _, text := range s.PoolModels {
		pool, list, err := named("pool-models", text)
		if err != nil {
			return nil, err
		}
		pool.Models = append(pool.Models, strings.Split(list, ",")...)
	}
	for _, text := range s.PoolLabels {
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

// Configure puts the settings into the configuration.
func (s *Settings) Configure(c *Config) {
	c.Repositories, c.Namespacing = s.ModelRepository, s.Namespacing.On
	c.Control, c.LoadModels = Control(s.ControlMode), s.LoadModel
	c.Poll = time.Duration(s.PollSecs) * time.Second
	c.Pools, _ = s.pools() // validated
	c.Models.ConfigName, c.Models.Strict = s.ConfigName, s.NoAutoComplete || s.StrictConfig.On
}

// SetMaxBatchSize takes the batch size by which configurations are completed
// from the values of --backend-config. What is set for the one backend goes
// before what is set for all. Errors have the reason config_invalid.
func (m *Models) SetMaxBatchSize(backendConfig []string) error {
	backends, err := config.Named("backend-config", backendConfig)
	if err != nil {
		return err
	}
	for _, backend := range []string{"", "onnxruntime"} {
		value, ok := backends[backend][modelconfig.MaxBatchSizeSetting]
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil || n < 0 {
			return errs.New(errs.ConfigInvalid, "--backend-config=%s,%s=%s: it is a number of rows, 0 or more", backend, modelconfig.MaxBatchSizeSetting, value)
		}
		m.MaxBatchSize = int(n)
	}
	return nil
}
