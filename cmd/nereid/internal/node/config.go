package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Config configures a node. A field with a name is a flag, and a setting of that
// name in files and in the environment.
type Config struct {
	ID          string `name:"node-id" placeholder:"ID" help:"Name of the node; its workers are called ID-cpu, ID-gpu0. Without it the host's name."`
	CPUWorkers  string `name:"cpu-workers" default:"machine" enum:"machine,numa,none" help:"Workers for CPUs: machine is one, numa one for each NUMA node, on its cores."`
	GPUWorkers  string `name:"gpu-workers" default:"auto" enum:"auto,none" help:"Workers for GPUs: auto is one for each that NVIDIA's driver knows."`
	Program     string `name:"worker" placeholder:"FILE" help:"The worker's program; without it the one beside this program."`
	Address     string `name:"worker-address" default:"0.0.0.0" help:"Address on which each worker listens for the other services, on a port of its own."`
	MetricsPort int    `name:"worker-metrics-port" default:"8022" help:"Port on which the first worker serves its metrics and health; the others follow it."`
	CrashBudget int    `name:"crash-budget" default:"10" help:"How often in a row a worker may end within a minute of its start; then its device is given up."`
	ExitTimeout int    `name:"exit-timeout-secs" default:"75" help:"How long workers may take to stop, in seconds; then they are killed. Give half a minute more than their --exit-timeout-secs and --leave-timeout-secs together."`
	KeepWorkers bool   `name:"keep-workers" help:"Let the workers run on when this process is killed. Otherwise they drain then."`

	// Pause is how long the first new start waits; it doubles up to LongestPause
	// while a worker ends soon after its start.
	Pause        time.Duration `kong:"-"`
	LongestPause time.Duration `kong:"-"`
	// Steady is how long a worker has to run for its ends before to be
	// forgotten.
	Steady time.Duration `kong:"-"`

	// FreePorts has each start of a worker use a port for its metrics and health that is free
	// then, instead of MetricsPort.
	FreePorts bool `kong:"-"`
	// Words come before a worker's flags: what has the program be one. Environment is added to
	// that of this process.
	Words, Environment []string `kong:"-"`

	// Arguments are those of all workers beside what distinguishes them.
	Arguments []string `arg:"" optional:"" passthrough:"" name:"settings" help:"Flags of the workers, behind --."`
}

// Default returns the flags' defaults.
func Default() Config {
	return Config{
		CPUWorkers: "machine", GPUWorkers: "auto", Address: "0.0.0.0", MetricsPort: 8022, CrashBudget: 10, ExitTimeout: 75,
		Pause: time.Second, LongestPause: 30 * time.Second, Steady: time.Minute,
	}
}

// Validate returns an error of the reason config_invalid that names the
// setting and what it may be.
func (c Config) Validate() error {
	switch {
	case c.CPUWorkers == None && c.GPUWorkers == None:
		return errs.New(errs.ConfigInvalid, "--cpu-workers and --gpu-workers are both none: leave one out")
	case c.MetricsPort < 1 || c.MetricsPort > 65535:
		return errs.New(errs.ConfigInvalid, "--worker-metrics-port is %d: want 1 to 65535", c.MetricsPort)
	case c.CrashBudget < 1:
		return errs.New(errs.ConfigInvalid, "--crash-budget is %d: want 1 or more", c.CrashBudget)
	case c.ExitTimeout < 0:
		return errs.New(errs.ConfigInvalid, "--exit-timeout-secs is %d: want 0 or more", c.ExitTimeout)
	}
	for _, arg := range c.Arguments {
		for _, name := range own() {
			if arg == "--"+name || strings.HasPrefix(arg, "--"+name+"=") {
				return errs.New(errs.ConfigInvalid, "--%s is given to each worker by the node: leave it out behind --", name)
			}
		}
	}
	return nil
}

// own are the flags of workers that the node gives each by itself.
func own() []string {
	return []string{"id", "device", "device-uuid", "listen", "advertise", "metrics-port"}
}

// Complete finds the name of the node and the worker's program where the settings
// have none. Errors have the reason config_invalid.
func (c Config) Complete() (Config, error) {
	if c.ID == "" {
		var err error
		if c.ID, err = os.Hostname(); err != nil {
			return c, errs.Wrap(errs.ConfigInvalid, err, "the host has no name: give the node one with --node-id")
		}
	}
	if c.Program == "" {
		this, err := os.Executable()
		if err != nil {
			return c, errs.Wrap(errs.ConfigInvalid, err, "it is unknown where this program is: name the worker's with --worker")
		}
		c.Program = filepath.Join(filepath.Dir(this), "worker")
	}
	if _, err := exec.LookPath(c.Program); err != nil {
		return c, errs.Wrap(errs.ConfigInvalid, err, "no worker's program at %s: name it with --worker", c.Program)
	}
	return c, nil
}
