package embedded

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/node"
	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/gpu"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/process"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	gatewayprogram "github.com/nereid-serving/nereid/services/gateway/command"
	registryprogram "github.com/nereid-serving/nereid/services/registry/command"
	schedulerprogram "github.com/nereid-serving/nereid/services/scheduler/command"
	"github.com/nereid-serving/nereid/services/worker"
)

// Which GPUs are used, by words of --gpus.
const (
	autoGPUs = "auto"
	noGPUs   = "none"
)

// WorkerWord is the first argument by which this program is a worker's.
const WorkerWord = "worker"

// gpuNumbers are those that the setting names.
func (c *Config) gpuNumbers() (numbers []int, err error) {
	if c.GPUs == autoGPUs || c.GPUs == noGPUs {
		return nil, nil
	}
	for text := range strings.SplitSeq(c.GPUs, ",") {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil || slices.Contains(numbers, int(n)) {
			return nil, errs.New(errs.ConfigInvalid, "--gpus=%s: want auto, none, or the numbers of GPUs, each once, such as 0,1", c.GPUs)
		}
		numbers = append(numbers, int(n))
	}
	return numbers, nil
}

// devices are those that get a worker process of their own, the CPUs among them; without a GPU
// none do.
func (c *Config) devices(log *zap.Logger) ([]node.Device, error) {
	numbers, _ := c.gpuNumbers() // validated
	var gpus []node.Device
	for _, n := range numbers {
		gpus = append(gpus, node.Device{Name: "gpu" + strconv.Itoa(n), Kind: node.GPU, Number: n})
	}
	if c.GPUs == autoGPUs {
		var err error
		if gpus, err = c.findGPUs(nvml.New()); err != nil {
			log.Warn("the GPUs of this machine are not used; with --gpus=none nobody looks for them", obs.Err(err)...)
			return nil, nil
		}
	}
	if len(gpus) == 0 {
		return nil, nil
	}
	cpus, err := node.Find(node.PerMachine, "", nil)
	return append(cpus, gpus...), err
}

// findGPUs lists the GPUs that the driver knows and ONNX Runtime can use. The error is why there
// are some that it cannot.
func (c *Config) findGPUs(library nvml.Interface) ([]node.Device, error) {
	machine, err := gpu.Open(library)
	if err != nil || machine == nil {
		return nil, err
	}
	defer machine.Close()
	gpus, err := node.Find(node.None, "", machine)
	if err != nil || len(gpus) == 0 {
		return nil, err
	}
	if cause := worker.WithoutCUDA(c.Worker.OnnxRuntimeLibrary); cause != "" {
		return nil, errs.New(errs.LibraryMissing, "%s", cause)
	}
	return gpus, nil
}

// serveDevices serves with a worker process for each device, so that one that ends takes no
// other with it. They reach the other services, which are in this process, over sockets that
// belong to its user, and NATS by a password.
func (s *Server) serveDevices(ctx context.Context, devices []node.Device) error {
	dir, err := os.MkdirTemp("", "nereid-")
	if err != nil {
		return err
	}
	b, err := bus.Open(ctx, bus.Config{Dir: s.config.Data, Name: "nereid", Listen: "127.0.0.1:0", Password: rand.Text(), Log: s.log})
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	defer s.showGPUs()()
	parts, err := s.deviceParts(ctx, b, dir, devices)
	if err == nil {
		err = lifecycle.Run(ctx, parts...)
	}
	return errors.Join(err, b.Close(), os.RemoveAll(dir))
}

// showGPUs has the metrics show the machine's GPUs. The function ends that.
func (s *Server) showGPUs() (end func()) {
	machine, err := gpu.Open(nvml.New())
	if err != nil || machine == nil || !s.config.Host.GPUMetrics.On {
		return func() {} // the workers say what the driver does not tell
	}
	s.metrics.MustRegister(machine.Collector())
	return machine.Close
}

// deviceParts makes the services and the workers. The registry waits for the workers, so that
// it places models once, on what there is.
func (s *Server) deviceParts(ctx context.Context, b *bus.Bus, dir string, devices []node.Device) ([]lifecycle.Part, error) {
	if err := errors.Join(b.EnsureBuckets(ctx), forgetWorkers(ctx, b), forgetLog(ctx, b)); err != nil {
		return nil, err
	}
	p := &process.Process{ID: "nereid", Bus: b, Metrics: s.metrics, Log: s.log, Logs: s.config.Logs}
	listen := func(name string) process.PeerSettings {
		return process.PeerSettings{Listen: []string{"unix:" + filepath.Join(dir, name)}}
	}
	scheduling, err := (&schedulerprogram.Command{Pool: "default", Peers: listen("scheduler"), Scheduler: s.config.Scheduler}).Service(ctx, p)
	if err != nil {
		return nil, err
	}
	registering, err := (&registryprogram.Command{Registry: s.config.Registry, BackendConfig: s.config.Worker.BackendConfig, Peers: listen("registry")}).Service(ctx, p)
	if err != nil {
		return nil, err
	}
	gateway := gatewayprogram.Command{ServerName: s.config.ID, Gateway: s.config.Gateway, Tensors: process.TensorSettings{ShareMemory: config.Switch{On: true}}}
	serving, gate, err := gateway.Service(p)
	if err != nil {
		return nil, err
	}
	workers, err := s.workers(b, dir, devices)
	if err != nil {
		return nil, err
	}
	parts := append(s.followLog(b), lifecycle.Part{Name: "metrics", Run: s.serveMetrics}, lifecycle.Part{Name: "host", Run: s.watchHost})
	parts = append(parts, scheduling.Parts...)
	parts = append(parts, lifecycle.Part{Name: "workers", Run: workers.Run})
	for _, part := range registering.Parts {
		parts = append(parts, lifecycle.Part{Name: part.Name, Run: func(ctx context.Context) error {
			s.awaitWorkers(ctx, b, len(devices))
			return s.runRegistry(ctx, part.Run, gate)
		}})
	}
	parts = append(parts, serving.Parts...)
	return append(parts, lifecycle.Part{Name: "start", Run: (&start{server: s, gateway: gate}).Run}), nil
}

// workers makes what runs the processes of the workers, which are this program's.
func (s *Server) workers(b *bus.Bus, dir string, devices []node.Device) (*node.Node, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := node.Default()
	c.ID, c.Program, c.Words, c.Address = "nereid", program, []string{WorkerWord}, "unix:"+dir
	c.FreePorts = s.config.Admin.MetricsPort == 0
	c.MetricsPort = s.config.Admin.MetricsPort + workerPorts
	c.Environment = []string{config.EnvName("nats-url") + "=" + b.Addr()}
	c.Arguments = append(slices.Concat(config.Flags(s.config.Worker), config.Flags(s.config.Admin.TLS), s.config.LogFlags),
		fmt.Sprintf("--exit-timeout-secs=%d", int(s.config.Worker.DrainTimeout/time.Second)), "--metrics-address="+cmp.Or(s.admin.Address, "0.0.0.0"),
		"--leave-timeout-secs=0") // they stop together: there is no other worker to wait for
	c.ExitTimeout = int(s.config.Worker.DrainTimeout/time.Second) + workerEnd
	return node.New(c, node.Deps{Devices: devices, Stdout: os.Stdout, Stderr: os.Stderr, Metrics: s.metrics, Log: s.log})
}

const (
	// workerPorts is how far the ports of the workers' metrics are from this process's.
	workerPorts = 20
	// workerEnd is how long a worker may take to end when its requests have, in seconds.
	workerEnd = 15
	// longestStart is how long the registry waits for workers that do not come.
	longestStart = time.Minute
)

// awaitWorkers waits until so many workers are there.
func (s *Server) awaitWorkers(ctx context.Context, b *bus.Bus, count int) {
	ctx, cancel := context.WithTimeout(ctx, longestStart)
	defer cancel()
	workers, err := bus.NewBucket(b, bus.Workers, bus.Values[*nereidv1.WorkerValue]())
	for err == nil && ctx.Err() == nil {
		var ids []string
		if ids, err = workers.Keys(ctx); len(ids) >= count {
			return
		}
		lifecycle.Pause(ctx, 50*time.Millisecond)
	}
	if err != nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		s.log.Warn("not all workers have come: models are placed on those that have", obs.Err(err)...)
	}
}
