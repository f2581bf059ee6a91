package cluster

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/test/audit"
	"github.com/nereid-serving/nereid/test/load"
	"github.com/nereid-serving/nereid/test/ports"
)

// The size of the cluster and what it does.
const (
	registries = 2
	schedulers = 2
	workers    = 3
	gateways   = 2
)

// The models. Requests for single run one at a time. Those for batched come many
// at once and run in batches that take no time, so that an instance gets its next
// batch before it is free. Those for long run for longer than a takeover lasts, and
// those for scripted in processes of Python; those for composed by first and then by second; those
// for calling in processes of Python, which call first. Only some rows have these.
const (
	single   = "single"
	batched  = "batched"
	long     = "long"
	scripted = "scripted"
	composed = "composed"
	calling  = "calling"

	batchedSize = 4
)

// steps are the models that requests for an ensemble, or for a model that calls another,
// run on.
func steps() map[string][]string {
	return map[string][]string{composed: {"first", "second"}, calling: {"first", calling}}
}

// served are the models of every row.
func served() []string { return []string{batched, single} }

// script is the code of a model that runs for a while and gives back its input.
const script = `import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.06)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy())]) for r in requests]
`

// callingScript is the code of a model that answers with what another answers.
const callingScript = `import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for r in requests:
            call = pb_utils.InferenceRequest(
                model_name="first", requested_output_names=["y"], inputs=r.inputs(), request_id=r.request_id())
            answer = call.exec()
            if answer.has_error():
                responses.append(pb_utils.InferenceResponse(error=answer.error()))
            else:
                responses.append(pb_utils.InferenceResponse(answer.output_tensors()))
        return responses
`

// scripts are the codes of the models in Python.
func scripts() map[string]string { return map[string]string{scripted: script, calling: callingScript} }

// config is the configuration of a model.
func config(name string) string {
	backend := "echo"
	if scripts()[name] != "" {
		backend = "python"
	}
	text := fmt.Sprintf(`
backend: %q
max_batch_size: %d
input { name: "x" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_INT32 dims: [ 1 ] }
`, backend, batchedSize)
	switch name {
	case composed:
		return strings.Replace(text, `backend: "echo"`, `platform: "ensemble"`, 1) + `
ensemble_scheduling { step [
  { model_name: "first" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "between" } },
  { model_name: "second" model_version: -1 input_map { key: "x" value: "between" } output_map { key: "y" value: "y" } }
] }
`
	case scripted, calling:
		return text + fmt.Sprintf(`
instance_group [ { count: %d kind: KIND_CPU } ]
`, stubs)
	case batched:
		return text + `
dynamic_batching { }
instance_group [ { count: 1 kind: KIND_CPU } ]
`
	case long:
		return text + `
instance_group [ { count: 2 kind: KIND_CPU } ]
parameters { key: "execute_us" value { string_value: "8000000" } }
`
	default:
		return text + `
instance_group [ { count: 2 kind: KIND_CPU } ]
parameters { key: "execute_us" value { string_value: "40000" } }
`
	}
}

// traffic is the requests of every row, as many for each model. Some have no deadline.
func traffic() []load.Traffic {
	return []load.Traffic{
		{Model: single, Rate: rate / 4}, {Model: single, Rate: rate / 4, Endless: true}, {Model: batched, Rate: rate / 2, Burst: 25},
	}
}

// underWay is how many requests of every row's models a worker may have been
// given and not begun: one for each instance of single, and for that of batched
// a batch that is to run and the three behind it.
const underWay = 2 + 4*batchedSize

// stubs is how many processes of a model in Python a worker has.
const stubs = 2

// cluster is the services, each a process of its own.
type cluster struct {
	t         *testing.T
	dir       string
	bin       string // where the programs are
	address   string // of NATS
	settings  settings
	nats      *process
	processes map[string]*process // by name, without NATS
	links     map[string]*link    // of each process to NATS
	targets   []load.Target
	store     *bus.Bus // the test's own look at the state
	finders   map[string]*control.Finder
	ports     ports.Picker // for processes that must find the same in their next incarnation
}

// settings are further arguments, by service.
type settings map[string][]string

func programs(t *testing.T) string {
	t.Helper()
	nereid := os.Getenv("NEREID_BIN")
	if nereid == "" {
		t.Skip("NEREID_BIN names no program: run make build, and set it")
	}
	return filepath.Dir(nereid)
}

// start starts a cluster and waits until it serves.
func start(t *testing.T, further settings) *cluster {
	t.Helper()
	c := prepare(t, further)
	c.start(served())
	return c
}

// start starts all processes and waits until they serve these models.
func (c *cluster) start(models []string) {
	c.t.Helper()
	for _, p := range c.processes {
		p.start()
	}
	for _, p := range c.processes {
		p.ready()
	}
	c.serves(models...)
}

// prepare makes a cluster of which NATS runs.
func prepare(t *testing.T, further settings) *cluster {
	t.Helper()
	bin := programs(t)
	dir := t.TempDir()
	c := &cluster{
		t: t, dir: dir, bin: bin, settings: further,
		processes: make(map[string]*process), links: make(map[string]*link), finders: make(map[string]*control.Finder),
	}
	c.address = fmt.Sprintf("127.0.0.1:%d", c.ports.Free(t))
	c.nats = &process{
		t: t, name: "nats", program: filepath.Join(bin, "nereid"), dir: dir,
		arguments: func(int) []string {
			return []string{"bus", "--listen", c.address, "--data", c.state()}
		},
	}
	c.nats.start()
	for _, name := range served() {
		c.repository(name)
	}
	c.add("registry", registries, func(int, string) []string {
		return []string{"--model-repository", filepath.Join(dir, "models"), "--listen", "127.0.0.1:0"}
	})
	c.add("scheduler", schedulers, func(int, string) []string { return []string{"--listen", "127.0.0.1:0"} })
	c.add("worker", workers, c.worker)
	ports := make(map[string][2]int)
	for i := range gateways {
		name := fmt.Sprintf("gateway-%d", i+1)
		ports[name] = [2]int{c.ports.Free(t), c.ports.Free(t)}
		c.targets = append(c.targets, load.Target{
			Name: name, HTTP: fmt.Sprintf("127.0.0.1:%d", ports[name][0]), GRPC: fmt.Sprintf("127.0.0.1:%d", ports[name][1]),
		})
	}
	c.add("gateway", gateways, func(_ int, name string) []string {
		return []string{
			"--http-address", "127.0.0.1", "--grpc-address", "127.0.0.1",
			"--http-port", fmt.Sprint(ports[name][0]), "--grpc-port", fmt.Sprint(ports[name][1]),
		}
	})
	t.Cleanup(c.end)
	c.connect("nats://" + c.address)
	return c
}

// state is where NATS keeps what it holds.
func (c *cluster) state() string { return filepath.Join(c.dir, "state") }

func (c *cluster) worker(incarnation int, name string) []string {
	return []string{"--listen", "127.0.0.1:0", "--execution-log", filepath.Join(c.dir, executions(name, incarnation))}
}

// executions is the name of a worker's log in one of its incarnations.
func executions(name string, incarnation int) string {
	return fmt.Sprintf("%s.%d.executions", name, incarnation)
}

// add makes the processes of a service.
func (c *cluster) add(service string, count int, own func(incarnation int, name string) []string) {
	for i := range count {
		c.addOne(service, fmt.Sprintf("%s-%d", service, i+1), own)
	}
}

func (c *cluster) addOne(service, name string, own func(incarnation int, name string) []string) *process {
	c.links[name] = newLink(c.t, c.address)
	metrics := c.ports.Free(c.t)
	p := &process{
		t: c.t, name: name, program: filepath.Join(c.bin, service), dir: c.dir, health: fmt.Sprintf("127.0.0.1:%d", metrics),
		arguments: func(incarnation int) []string {
			return slices.Concat([]string{
				"--id", name, "--nats-url", c.links[name].url(), "--metrics-port", fmt.Sprint(metrics), "--metrics-address", "127.0.0.1",
			}, own(incarnation, name), c.settings[service])
		},
	}
	c.processes[name] = p
	return p
}

// repository puts a model into the repository.
func (c *cluster) repository(name string) {
	c.t.Helper()
	dir := filepath.Join(c.dir, "models", name)
	if err := os.MkdirAll(filepath.Join(dir, "1"), 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.pbtxt"), []byte(config(name)), 0o600); err != nil {
		c.t.Fatal(err)
	}
	code := scripts()[name]
	if code == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(dir, "1", "model.py"), []byte(code), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// connect is the test's own connection to NATS, by which it knows who leads.
func (c *cluster) connect(url string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	for c.store == nil {
		b, err := bus.Open(ctx, bus.Config{URL: url, Name: "test"})
		if err == nil {
			c.store = b
		} else if ctx.Err() != nil {
			c.t.Fatalf("waited in vain for NATS to take a connection: %v", err)
		}
	}
	if err := c.store.EnsureBuckets(ctx); err != nil { // as a registry does
		c.t.Fatal(err)
	}
	for _, role := range []string{control.RegistryRole, control.PoolRole("default")} {
		f := control.NewFinder(c.store, role)
		c.finders[role] = f
		go func() { _ = f.Run(context.WithoutCancel(ctx)) }() // ends with the store
	}
}

// holder waits until a role is held, by another than before if that is named,
// and returns the holder's id.
func (c *cluster) holder(role, before string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	for {
		h, changed, ok := c.finders[role].Wait(ctx)
		switch {
		case !ok:
			c.t.Fatalf("waited in vain for somebody to hold %s", role)
		case h.ID != before:
			return h.ID
		}
		select {
		case <-changed:
		case <-ctx.Done():
			c.t.Fatalf("waited in vain for another to hold %s than %s", role, before)
		}
	}
}

// vacant waits until nobody holds a role.
func (c *cluster) vacant(role string) {
	c.t.Helper()
	give := time.NewTimer(patience)
	defer give.Stop()
	for {
		h, changed := c.finders[role].Current()
		if h == (control.Holder{}) {
			return
		}
		select {
		case <-changed:
		case <-give.C:
			c.t.Fatalf("waited in vain for %s to give %s up", h.ID, role)
		}
	}
}

// serves waits until every gateway answers requests for these models, and knows
// no others.
func (c *cluster) serves(models ...string) {
	c.t.Helper()
	slices.Sort(models)
	for _, target := range c.targets {
		h := client.HTTP(target.HTTP, client.Options{})
		ctx, cancel := context.WithTimeout(c.t.Context(), patience)
		for {
			index, err := h.Index(ctx)
			var ready []string
			for _, m := range index {
				if m.State == "READY" {
					ready = append(ready, m.Name)
				}
			}
			slices.Sort(ready)
			if err == nil && len(index) == len(models) && slices.Equal(ready, models) {
				break
			}
			if ctx.Err() != nil {
				c.t.Fatalf("waited in vain for %s to serve: %v, %v", target.Name, index, err)
			}
		}
		cancel()
		_ = h.Close()
	}
}

// end stops what still runs. Logs are kept where a test has failed.
func (c *cluster) end() {
	for _, name := range slices.Sorted(maps.Keys(c.processes)) {
		c.processes[name].end()
	}
	if c.store != nil {
		_ = c.store.Close()
	}
	c.nats.end()
	if !c.t.Failed() {
		return
	}
	if keep := os.Getenv("NEREID_KEEP_LOGS"); keep != "" {
		to := filepath.Join(keep, strings.ReplaceAll(c.t.Name(), "/", "_"))
		_ = os.RemoveAll(to)
		if err := os.CopyFS(to, os.DirFS(c.dir)); err != nil {
			c.t.Log(err)
		}
	}
}

// audit joins the logs of the load and of all incarnations of the workers.
func (c *cluster) audit(lines string, causes audit.Causes) audit.Report {
	c.t.Helper()
	a := audit.Auditor{Causes: &causes, Steps: steps()}
	c.feed(lines, func(f *os.File) error { return a.Clients(f) })
	logs, err := filepath.Glob(filepath.Join(c.dir, "*.executions"))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, path := range logs {
		c.feed(path, func(f *os.File) error { return a.Worker(filepath.Base(path), f) })
	}
	return a.Report()
}

func (c *cluster) feed(path string, take func(*os.File) error) {
	c.t.Helper()
	f, err := os.Open(path)
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	if err := take(f); err != nil {
		c.t.Fatalf("%s: %v", path, err)
	}
}

// pass lets time go by, in which the load goes on.
func (c *cluster) pass(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.t.Context().Done():
	}
}
