package cluster

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// large is a model whose output has as many elements as its input says.
const large = "large"

const largeScript = `import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(1)
        sizes = [int(r.inputs()[0].as_numpy().reshape(-1)[0]) for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.ones((1, n), dtype=np.int32))]) for n in sizes]
`

// endless is for how long a test waits for a request without a deadline before it
// takes it for one that hangs.
const endless = 30 * time.Second

// stops is a cluster whose model large answers with many bytes.
func stops(t *testing.T, shared bool) *cluster {
	t.Helper()
	share := fmt.Sprintf("--share-memory=%v", shared)
	c := prepare(t, settings{"worker": {share}, "gateway": {share}})
	for _, name := range []string{"worker-3", "gateway-2"} {
		delete(c.processes, name)
	}
	c.targets = c.targets[:1]
	version := filepath.Join(c.dir, "models", large, "1")
	if err := os.MkdirAll(version, 0o755); err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(config(large), `backend: "echo"`, `backend: "python"`, 1)
	text = strings.Replace(text, `output { name: "y" data_type: TYPE_INT32 dims: [ 1 ] }`, `output { name: "y" data_type: TYPE_INT32 dims: [ -1 ] }`, 1)
	text = text[:strings.Index(text, "instance_group")] + "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
	for path, content := range map[string]string{filepath.Join(version, "model.py"): largeScript, filepath.Join(version, "..", "config.pbtxt"): text} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.start(append(served(), large))
	return c
}

// ask sends a request without a deadline, whose answer has so many MiB, and returns
// where its end comes: nil is the whole answer.
func (c *cluster) ask(id string, mebibytes int) <-chan error {
	ended := make(chan error, 1)
	go func() {
		ended <- func() error {
			caller, err := client.GRPC(c.targets[0].GRPC, client.Options{})
			if err != nil {
				return err
			}
			defer caller.Close()
			elements := mebibytes << 18
			r, err := caller.Infer(context.WithoutCancel(c.t.Context()), &client.Request{Model: large, ID: id, Inputs: []client.Tensor{{
				Description: client.Description{Name: "x", Datatype: tensor.Int32, Shape: tensor.Shape{1, 1}},
				Data:        binary.LittleEndian.AppendUint32(nil, uint32(elements)),
			}}})
			if err == nil && len(r.Outputs[0].Data) != 4*elements {
				err = fmt.Errorf("the answer has %d bytes, want %d", len(r.Outputs[0].Data), 4*elements)
			}
			return err
		}()
	}()
	return ended
}

// lines returns the workers whose logs have an event of a request.
func (c *cluster) lines(id, event string) (workers []string) {
	c.t.Helper()
	logs, err := filepath.Glob(filepath.Join(c.dir, "*.executions"))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, path := range logs {
		text, err := os.ReadFile(path)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, line := range strings.Split(string(text), "\n") {
			if strings.Contains(line, `"`+event+`"`) && strings.Contains(line, `"`+id+`"`) {
				worker, _, _ := strings.Cut(filepath.Base(path), ".")
				workers = append(workers, worker)
			}
		}
	}
	return workers
}

// executing waits until a request has come so far, and returns its worker.
func (c *cluster) executing(id, event string) string {
	c.t.Helper()
	for give := time.Now().Add(patience); time.Now().Before(give); c.pass(5 * time.Millisecond) {
		if workers := c.lines(id, event); len(workers) > 0 {
			return workers[0]
		}
	}
	c.t.Fatalf("waited in vain for the %s of request %s", event, id)
	return ""
}

// harmBesideStop is what else happens while a worker runs a request without a deadline
// and has to stop.
type harmBesideStop struct {
	name string
	do   func(c *cluster, worker *process)
	// lost says that the worker is killed, so that the request may fail.
	lost bool
	// quiet says that nobody has cause for a warning.
	quiet bool
}

func harmsBesideStops() []harmBesideStop {
	return []harmBesideStop{
		{"nothing else", func(_ *cluster, worker *process) { worker.stop() }, false, true},
		{"the gateway stands still", func(c *cluster, worker *process) {
			worker.signal(syscall.SIGTERM)
			c.pass(800 * time.Millisecond)
			c.processes["gateway-1"].signal(syscall.SIGSTOP)
			c.pass(3 * time.Second)
			c.processes["gateway-1"].signal(syscall.SIGCONT)
			<-worker.exited
		}, false, false},
		{"the scheduler is killed", func(c *cluster, worker *process) {
			c.processes[c.holder(control.PoolRole("default"), "")].kill()
			worker.stop()
		}, false, false},
		{"the scheduler stops", func(c *cluster, worker *process) {
			worker.signal(syscall.SIGTERM)
			c.processes[c.holder(control.PoolRole("default"), "")].stop()
			<-worker.exited
		}, false, true},
		{"the registry stops", func(c *cluster, worker *process) {
			worker.signal(syscall.SIGTERM)
			c.processes[c.holder(control.RegistryRole, "")].stop()
			<-worker.exited
		}, false, true},
		{"the scheduler is killed, and the worker once it has answered", func(c *cluster, worker *process) {
			c.processes[c.holder(control.PoolRole("default"), "")].kill()
			for len(c.lines("stop", "end")) == 0 {
				c.pass(time.Millisecond)
			}
			worker.kill()
		}, true, false},
	}
}

// TestStopsUnderKills has a worker stop that runs a request without a deadline, with an
// answer of 64 MiB and of 400 MiB, over shared memory and over the stream, beside other
// harms. The request has its one whole answer, or fails where its worker was killed; it
// is executed once; and it ends. NEREID_KILLS above quick has all sizes, else the small one
// goes over the stream alone.
func TestStopsUnderKills(t *testing.T) {
	full := kills(t) > quick
	for _, size := range []int{64, 400} {
		for _, shared := range []bool{false, true} {
			for _, h := range harmsBesideStops() {
				if !full && (size > 64 || shared || !strings.Contains(h.name, "kill") && !strings.Contains(h.name, "still")) {
					continue
				}
				t.Run(fmt.Sprintf("%d MiB, shared %v, %s", size, shared, h.name), func(t *testing.T) {
					c := stops(t, shared)
					ended := c.ask("stop", size)
					worker := c.processes[c.executing("stop", "begin")]
					h.do(c, worker)
					select {
					case err := <-ended:
						if err != nil && (!h.lost || !strings.Contains(err.Error(), "request is gone")) {
							t.Errorf("the request ended with %v", err)
						}
					case <-time.After(endless):
						t.Errorf("the request has no answer %v after its worker is gone", endless)
					}
					if begun := c.lines("stop", "begin"); len(begun) != 1 {
						t.Errorf("executed on %v, want once", begun)
					}
					if h.quiet {
						c.silent(worker.name)
					}
				})
			}
		}
	}
}

// alarm is a line of a log that a stop in good order does not give.
var alarm = regexp.MustCompile(`(?m)^.*\t(WARN|ERROR)\t.*$`)

// silent checks that processes have logged no warning.
func (c *cluster) silent(names ...string) {
	c.t.Helper()
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(c.dir, name+".log"))
		if err != nil {
			c.t.Fatal(err)
		}
		for _, line := range alarm.FindAllString(string(text), -1) {
			c.t.Errorf("%s logged: %s", name, line)
		}
	}
}

// TestCleanStopsLogNoWarnings stops each service in good order. Neither it nor any other
// logs a warning.
func TestCleanStopsLogNoWarnings(t *testing.T) {
	kills(t)
	c := start(t, nil)
	for _, name := range []string{
		"worker-1", c.holder(control.PoolRole("default"), ""), c.holder(control.RegistryRole, ""), "gateway-1",
	} {
		c.processes[name].stop()
		c.pass(2 * time.Second)
	}
	for name := range c.processes {
		c.silent(name)
	}
}
