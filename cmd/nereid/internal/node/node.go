// Package node runs the workers of one machine: it starts a process for each
// device, supervises it, restarts it when it exits, drains and stops it. It serves
// nothing itself; requests go to the workers.
package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/errs"
)

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
		return nil, errs.New(errs.ConfigInvalid, "no device to run a worker on: allow some with --cpu-workers or --gpu-workers, or give the container its GPUs (docker run --gpus all)")
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

// Ready returns which workers are not ready, and why; nil is none.
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

// unixScheme begins the address of a directory of sockets, in which each worker has its own.
const unixScheme = "unix:"

// arguments are those of one worker.
func (c Config) arguments(id string, d Device, metricsPort int) []string {
	listen := c.Address + ":0"
	if strings.HasPrefix(c.Address, unixScheme) {
		listen = c.Address + "/" + d.Name + ".sock"
	}
	return slices.Concat(c.Words, []string{
		"--id=" + id, fmt.Sprintf("--device=%s:%d", d.Kind, d.Number), "--listen=" + listen, "--metrics-port=" + strconv.Itoa(metricsPort),
		"--device-uuid=" + d.UUID,
	}, c.Given())
}

// Given are the flags that all workers get.
func (c Config) Given() []string {
	if len(c.Arguments) > 0 && c.Arguments[0] == "--" { // as the parser leaves it
		return c.Arguments[1:]
	}
	return c.Arguments
}
