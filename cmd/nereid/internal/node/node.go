// Package node runs the workers of one machine: a process for each device,
// started, watched, started again when it ends, drained and stopped. It serves
// nothing itself; requests go to the workers.
package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Config configures a node.
type Config struct {
	// ID names the node; a worker is called ID-DEVICE.
	ID string
	// Program is the worker's, and Arguments are those of all workers beside
	// what tells them apart.
	Program   string
	Arguments []string
	// Address is the host under which workers listen for other services, each
	// on a port of its own.
	Address string
	// MetricsPort is where the first worker serves its metrics and health; the
	// others follow it.
	MetricsPort int
	// Pause is how long the first new start waits; it doubles up to LongestPause
	// while a worker ends soon after its start.
	Pause, LongestPause time.Duration
	// Steady is how long a worker has to run for its ends before to be
	// forgotten.
	Steady time.Duration
	// Crashes is how many ends in a row a device is given; then it is given up.
	Crashes int
	// Drain is how long a worker may take to stop; then it is killed.
	Drain time.Duration
	// Outlive lets workers run on when the node is killed.
	Outlive bool
}

// Default gives what only tests change.
func Default() Config {
	return Config{
		Address: "0.0.0.0", MetricsPort: 8022,
		Pause: time.Second, LongestPause: 30 * time.Second, Steady: time.Minute, Crashes: 10, Drain: 45 * time.Second,
	}
}

// Validate returns an error of the reason config_invalid that names the
// setting and what it may be.
func (c Config) Validate() error {
	switch {
	case c.ID == "":
		return errs.New(errs.ConfigInvalid, "the node needs an id")
	case c.MetricsPort < 1 || c.MetricsPort > 65535:
		return errs.New(errs.ConfigInvalid, "--worker-metrics-port is %d: want 1 to 65535", c.MetricsPort)
	case c.Crashes < 1:
		return errs.New(errs.ConfigInvalid, "--crash-budget is %d: want 1 or more", c.Crashes)
	case c.Drain < 0:
		return errs.New(errs.ConfigInvalid, "--exit-timeout-secs is %v: want 0 or more", c.Drain)
	}
	return nil
}

// Deps are what a node works with.
type Deps struct {
	// Devices are those to run a worker on.
	Devices []Device
	// Stdout and Stderr take what the workers write; they are safe for
	// concurrent use.
	Stdout, Stderr io.Writer
	Metrics        prometheus.Registerer
	Log            *zap.Logger
}

// Node is the workers of one machine.
type Node struct {
	workers []*worker
	log     *zap.Logger
}

// New makes a node that starts nothing before Run.
func New(c Config, d Deps) (*Node, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if len(d.Devices) == 0 {
		return nil, errs.New(errs.ConfigInvalid, "no device to run a worker on: allow some with --cpu-workers or --gpu-workers")
	}
	n := &Node{log: d.Log}
	for i, device := range d.Devices {
		n.workers = append(n.workers, newWorker(c, d, device, c.MetricsPort+i))
	}
	d.Metrics.MustRegister(&collector{workers: n.workers, proc: "/proc"})
	return n, nil
}

// Run runs the workers until ctx is done, and then drains and stops them all
// at once. It fails when all devices have been given up.
func (n *Node) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failures := make(chan error, len(n.workers))
	var running sync.WaitGroup
	for _, w := range n.workers {
		running.Go(func() {
			if err := w.run(ctx); err != nil {
				n.log.Error("device given up", zap.String("worker_id", w.id), zap.Error(err))
				failures <- err
			}
		})
	}
	var all error
	for range n.workers {
		select {
		case err := <-failures:
			all = errors.Join(all, err)
			continue
		case <-ctx.Done():
			all = nil
		}
		break
	}
	cancel()
	running.Wait()
	return all
}

// Ready says which workers are not ready, and why; nil is none.
func (n *Node) Ready() error {
	problems := make([]error, len(n.workers))
	var asked sync.WaitGroup
	for i, w := range n.workers {
		asked.Go(func() {
			if err := w.ready(); err != nil {
				problems[i] = fmt.Errorf("%s: %w", w.id, err)
			}
		})
	}
	asked.Wait()
	return errors.Join(problems...)
}

// arguments are those of one worker.
func (c Config) arguments(id string, d Device, metricsPort int) []string {
	return append([]string{
		"--id=" + id, fmt.Sprintf("--device=%s:%d", d.Kind, d.Number),
		"--listen=" + c.Address + ":0", "--metrics-port=" + strconv.Itoa(metricsPort),
	}, c.Arguments...)
}
