package node

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/testkit/port"
)

// patience bounds what a test waits for; no test measures it.
const patience = time.Minute

// asWorker has this program act as a worker, or as a node that is killed.
const asWorker = "NEREID_TEST_NODE"

func TestMain(m *testing.M) {
	switch os.Getenv(asWorker) {
	case "":
		goleak.VerifyTestMain(m)
	case "node":
		actAsNode()
	default:
		actAsWorker(os.Getenv(asWorker))
	}
}

// actAsWorker does what a worker does as seen by a node: it serves its
// readiness and ends at a SIGTERM, unless the manner says otherwise.
func actAsWorker(manner string) {
	fmt.Fprintln(os.Stderr, "pid", os.Getpid())
	fmt.Fprintf(os.Stderr, "told %s %q\n", os.Getenv("NEREID_RESTARTS"), os.Getenv("NEREID_LAST_EXIT"))
	switch manner {
	case "fails":
		fmt.Fprint(os.Stderr, "no such library\n\n")
		os.Exit(1)
	case "usage":
		fmt.Fprint(os.Stderr, "worker: unknown flag --lable\nRun \"worker --help\" for what there is.\n")
		os.Exit(64)
	case "panics":
		panic("no such thing")
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	var port string
	for _, arg := range os.Args {
		if value, ok := strings.CutPrefix(arg, "--metrics-port="); ok {
			port = value
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2/health/ready", func(w http.ResponseWriter, _ *http.Request) {
		if manner == "unready" {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, "no lease")
		}
	})
	go func() { _ = http.ListenAndServe("127.0.0.1:"+port, mux) }()
	for range stop {
		if manner != "stubborn" {
			fmt.Fprintln(os.Stderr, "drained")
			os.Exit(0)
		}
	}
}

// actAsNode runs a node until it is killed.
func actAsNode() {
	port, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	if err := os.Setenv(asWorker, "well"); err != nil {
		panic(err)
	}
	c := configuration(port)
	c.KeepWorkers = os.Args[2] == "outlive"
	n, err := New(c, Deps{
		Devices: wholeMachine(), Stdout: io.Discard, Stderr: os.Stderr, Metrics: prometheus.NewRegistry(), Log: zap.NewNop(),
	})
	if err != nil {
		panic(err)
	}
	_ = n.Run(context.Background()) // it is killed
}

func configuration(port int) Config {
	c := Default()
	c.ID, c.Program, c.MetricsPort = "host", os.Args[0], port
	c.Pause, c.CrashBudget = time.Millisecond, 3
	return c
}

// output is what workers write, by lines.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// harness is a node whose workers act in one manner.
type harness struct {
	t        *testing.T
	node     *Node
	registry *prometheus.Registry
	stderr   *output
	cancel   context.CancelFunc
	ended    chan error
}

func startNode(t *testing.T, manner string, edit func(*Config), devices ...Device) *harness {
	t.Helper()
	t.Setenv(asWorker, manner)
	c := configuration(port.Free(t, len(devices)))
	if edit != nil {
		edit(&c)
	}
	h := &harness{t: t, registry: prometheus.NewRegistry(), stderr: new(output), ended: make(chan error, 1)}
	var err error
	h.node, err = New(c, Deps{Devices: devices, Stdout: io.Discard, Stderr: h.stderr, Metrics: h.registry, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, h.cancel = context.WithCancel(context.Background())
	go func() { h.ended <- h.node.Run(ctx) }()
	t.Cleanup(h.cancel)
	return h
}

func (h *harness) eventually(what string, holds func() bool) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for !holds() {
		select {
		case <-poll.C:
		case <-ctx.Done():
			h.t.Fatalf("waited in vain for %s; the workers said:\n%s", what, h.stderr)
		}
	}
}

func (h *harness) stop() {
	h.t.Helper()
	h.cancel()
	if err := <-h.ended; err != nil {
		h.t.Errorf("the node ended with %v", err)
	}
}

func TestWorkersOfAllDevicesRunAndDrain(t *testing.T) {
	h := startNode(t, "well", nil, Device{Name: "cpu"}, Device{Name: "gpu0", Kind: GPU})
	h.eventually("readiness", func() bool { return h.node.Ready() == nil })
	h.stop()
	if n := strings.Count(h.stderr.String(), "drained"); n != 2 {
		t.Errorf("%d workers drained, want 2:\n%s", n, h.stderr)
	}
}

func TestKilledWorkerIsStartedAgain(t *testing.T) {
	h := startNode(t, "well", nil, Device{Name: "cpu"})
	h.eventually("readiness", func() bool { return h.node.Ready() == nil })
	first := h.node.workers[0].status().pid
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	h.eventually("another worker", func() bool {
		s := h.node.workers[0].status()
		return s.starts == 2 && s.pid != first && h.node.Ready() == nil
	})
	want := `
		# HELP nereid_node_worker_starts_total How often the worker was started.
		# TYPE nereid_node_worker_starts_total counter
		nereid_node_worker_starts_total{device="cpu",worker="host-cpu"} 2
		# HELP nereid_node_worker_up 1 while the device's worker runs.
		# TYPE nereid_node_worker_up gauge
		nereid_node_worker_up{device="cpu",worker="host-cpu"} 1
	`
	if err := testutil.GatherAndCompare(h.registry, strings.NewReader(want), "nereid_node_worker_starts_total", "nereid_node_worker_up"); err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(h.registry, "nereid_node_worker_resident_bytes"); n != 1 || err != nil {
		t.Errorf("%d series of memory, %v", n, err)
	}
	h.stop()
}

func TestWorkerThatNeverStartsIsGivenUpWithItsLastWords(t *testing.T) {
	for manner, want := range map[string]string{
		"fails":  "ended 3 times in a row, at last with exit status 1: no such library",
		"usage":  "worker host-cpu refuses its settings: unknown flag --lable: correct the flags behind --",
		"panics": "ended 3 times in a row, at last with exit status 2: panic: no such thing",
	} {
		h := startNode(t, manner, nil, Device{Name: "cpu"})
		if err := <-h.ended; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		if err := h.node.Ready(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("readiness: %v, want %s", err, want)
		}
	}
}

func TestWorkersAreToldOfThoseBefore(t *testing.T) {
	h := startNode(t, "fails", nil, Device{Name: "cpu"})
	<-h.ended
	for _, want := range []string{`told 0 ""`, `told 1 "exit status 1: no such library"`, `told 2 "exit status 1: no such library"`} {
		if !strings.Contains(h.stderr.String(), want) {
			t.Errorf("no worker was %s:\n%s", want, h.stderr)
		}
	}
}

func TestMissingProgramIsNamed(t *testing.T) {
	h := startNode(t, "well", func(c *Config) { c.Program, c.CrashBudget = "/no/such/worker", 1 }, Device{Name: "cpu"})
	if err := <-h.ended; err == nil || !strings.Contains(err.Error(), "/no/such/worker") || !strings.Contains(err.Error(), "--worker") {
		t.Error(err)
	}
}

func TestOneDeviceGivenUpLeavesTheOthers(t *testing.T) {
	h := startNode(t, "well", nil, Device{Name: "cpu"}, Device{Name: "gpu0", Kind: GPU, Cores: []int{1 << 9}})
	h.eventually("one device to be given up", func() bool { return h.node.workers[1].status().givenUp })
	h.eventually("the other to be ready", func() bool { return h.node.workers[0].ready() == nil })
	h.eventually("the node to lack the one alone", func() bool { // a slow worker may miss a look at it
		err := h.node.Ready()
		return err != nil && !strings.Contains(err.Error(), "host-cpu:") && strings.Contains(err.Error(), "host-gpu0:")
	})
	h.stop()
}

func TestStubbornWorkerIsKilledInTheEnd(t *testing.T) {
	h := startNode(t, "stubborn", func(c *Config) { c.ExitTimeout = 0 }, Device{Name: "cpu"})
	h.eventually("readiness", func() bool { return h.node.Ready() == nil })
	h.stop()
}

func TestReadinessIsThatOfTheWorkers(t *testing.T) {
	h := startNode(t, "unready", nil, Device{Name: "cpu"})
	h.eventually("the worker's own words", func() bool {
		err := h.node.Ready()
		return err != nil && strings.Contains(err.Error(), "host-cpu: no lease")
	})
	h.stop()
}

// TestWorkersDoNotOutliveTheirNode kills a node's process.
func TestWorkersDoNotOutliveTheirNode(t *testing.T) {
	for _, manner := range []string{"die", "outlive"} {
		t.Run(manner, func(t *testing.T) {
			command := exec.CommandContext(t.Context(), os.Args[0], strconv.Itoa(port.Free(t, 1)), manner)
			command.Env = append(os.Environ(), asWorker+"=node")
			stderr, err := command.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := command.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(stderr)
			if !lines.Scan() {
				t.Fatal(lines.Err())
			}
			pid, err := strconv.Atoi(strings.TrimPrefix(lines.Text(), "pid "))
			if err != nil {
				t.Fatal(err)
			}
			if err := command.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = command.Wait() // it was killed
			if manner == "outlive" {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Errorf("the worker is gone: %v", err)
				}
				return
			}
			h := &harness{t: t, stderr: new(output)}
			h.eventually("the worker's end", func() bool { return gone(pid) })
		})
	}
}

// gone reports whether a process has ended; nobody may have asked how yet.
func gone(pid int) bool {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return errors.Is(err, os.ErrNotExist) || bytes.Contains(text, []byte(") Z "))
}

func TestWrongSettingsAreNamed(t *testing.T) {
	for want, edit := range map[string]func(*Config, *[]Device){
		"--worker-metrics-port": func(c *Config, _ *[]Device) { c.MetricsPort = 0 },
		"--crash-budget":        func(c *Config, _ *[]Device) { c.CrashBudget = 0 },
		"--exit-timeout-secs":   func(c *Config, _ *[]Device) { c.ExitTimeout = -1 },
		"no device":             func(_ *Config, d *[]Device) { *d = nil },
		"leave one out":         func(c *Config, _ *[]Device) { c.CPUWorkers, c.GPUWorkers = None, None },
		"--listen":              func(c *Config, _ *[]Device) { c.Arguments = []string{"--", "--listen=:1"} },
	} {
		c, devices := configuration(1), wholeMachine()
		edit(&c, &devices)
		_, err := New(c, Deps{Devices: devices, Metrics: prometheus.NewRegistry(), Log: zap.NewNop()})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
