package python_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/cores"
)

// takes answers with as many MiB as it is asked for.
const takes = imports + `
class TritonPythonModel:
    def execute(self, requests):
        return [give(SUM=np.ones(int(value(r, "A")[0]) << 20, np.uint8)[:4].view(np.float32)) for r in requests]
`

func TestMemoryIsBounded(t *testing.T) {
	bound := map[string]string{"NEREID_STUB_MEMORY_BYTES": strconv.Itoa(1 << 30)}
	for name, o := range map[string]options{
		"by the model":                          {config: modelconfig.Config{Parameters: bound}},
		"by the backend":                        {settings: map[string]string{"stub-memory-bytes": strconv.Itoa(1 << 30)}},
		"by the model more than by the backend": {config: modelconfig.Config{Parameters: bound}, settings: map[string]string{"stub-memory-bytes": strconv.Itoa(1 << 40)}},
	} {
		t.Run(name, func(t *testing.T) {
			c := numbers()
			c.Parameters = o.config.Parameters
			o.config = c
			w := run(t, takes, o)
			w.fails(w.infer(ask(floats("A", 2048))), errs.ExecutionFailed, "MemoryError")
			if r := w.infer(ask(floats("A", 1))); r.Err != nil {
				t.Error(r.Err)
			}
		})
	}
}

func TestLimitsThatAreNone(t *testing.T) {
	for parameter, want := range map[string]string{"NEREID_STUB_MEMORY_BYTES": "give bytes", "NEREID_STUB_CPUS": "number of processors"} {
		c := numbers()
		c.Parameters = map[string]string{parameter: "all"}
		if _, err := load(t, addSub, options{config: c}); errs.Of(err) != errs.LoadFailed || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", parameter, err)
		}
	}
}

// where answers with the cores that it may use.
const where = imports + `
class TritonPythonModel:
    def execute(self, requests):
        return [give(SUM=np.array(sorted(os.sched_getaffinity(0)), np.float32)) for r in requests]
`

// coresOf are the cores of the model where.
func coresOf(w *world) (list []int) {
	w.t.Helper()
	for text := range strings.SplitSeq(strings.SplitAfter(w.show(w.infer(ask())), "=")[1], ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			w.t.Fatal(err)
		}
		list = append(list, n)
	}
	return list
}

func TestStubsStayOnTheirCores(t *testing.T) {
	allowed, err := cores.Allowed()
	if err != nil {
		t.Fatal(err)
	}
	all := slices.Collect(allowed.All())
	last, err := cores.Parse(strconv.Itoa(all[len(all)-1]))
	if err != nil {
		t.Fatal(err)
	}
	policies := map[string]cores.Set{"near": last, "cpu": last, "gpu_1": last}
	one := map[string]string{"NEREID_STUB_CPUS": "1"}
	for name, c := range map[string]struct {
		o    options
		want []int
	}{
		"all":                       {options{}, all},
		"of a policy":               {options{policies: policies, spec: backend.InstanceSpec{HostPolicy: "near"}}, all[len(all)-1:]},
		"of the policy of CPUs":     {options{policies: policies}, all[len(all)-1:]},
		"of the policy of a GPU":    {options{policies: policies, spec: backend.InstanceSpec{Kind: modelconfig.KindGPU, Device: 1}}, all[len(all)-1:]},
		"of a policy without cores": {options{policies: policies, spec: backend.InstanceSpec{HostPolicy: "far"}}, all},
		"one":                       {options{config: modelconfig.Config{Parameters: one}}, all[:1]},
		"one by the backend":        {options{settings: map[string]string{"stub-cpus": "1"}}, all[:1]},
		"no bound by the model":     {options{settings: map[string]string{"stub-cpus": "1"}, config: modelconfig.Config{Parameters: map[string]string{"NEREID_STUB_CPUS": "0"}}}, all},
		"more than there are":       {options{settings: map[string]string{"stub-cpus": "9999"}}, all},
		"one of a policy":           {options{policies: policies, config: modelconfig.Config{Parameters: one}}, all[len(all)-1:]},
	} {
		t.Run(name, func(t *testing.T) {
			config := numbers()
			config.Inputs = nil
			config.Parameters = c.o.config.Parameters
			c.o.config = config
			if got := coresOf(run(t, where, c.o)); !slices.Equal(got, c.want) {
				t.Errorf("cores %v, want %v", got, c.want)
			}
		})
	}
}

func TestStubsThatAreBoundedShareTheCores(t *testing.T) {
	allowed, err := cores.Allowed()
	if err != nil {
		t.Fatal(err)
	}
	if allowed.Len() < 2 {
		t.Skip("there is one core")
	}
	config := numbers()
	config.Inputs, config.Parameters = nil, map[string]string{"NEREID_STUB_CPUS": "1"}
	first := run(t, where, options{config: config})
	for range 2 { // the second time on the cores that the first has given back
		in, err := first.model.NewInstance(t.Context(), backend.InstanceSpec{Name: "m_0_1"})
		if err != nil {
			t.Fatal(err)
		}
		second := newWorld(t)
		second.serve(in)
		if a, b := coresOf(first), coresOf(second); slices.Equal(a, b) {
			t.Errorf("both are on %v", a)
		}
		if err := second.executor.Close(t.Context(), second.id); err != nil {
			t.Fatal(err)
		}
	}
}

// boundGroup moves a process into a group of the kernel's of 256 MiB, or skips the test.
func boundGroup(t *testing.T, pid int) {
	t.Helper()
	for _, way := range []struct{ root, limit, swap string }{
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.swappiness"}, {"/sys/fs/cgroup", "memory.max", "memory.swap.max"},
	} {
		dir := filepath.Join(way.root, "nereid-test-"+strconv.Itoa(pid))
		if os.Mkdir(dir, 0o700) != nil {
			continue
		}
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
		if os.WriteFile(filepath.Join(dir, way.limit), []byte("268435456"), 0o600) != nil {
			continue
		}
		_ = os.WriteFile(filepath.Join(dir, way.swap), []byte("0"), 0o600) // there may be no swap
		if os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600) == nil {
			return
		}
	}
	t.Skip("the test may make no group that bounds memory")
}

func TestADeathForMemoryHasItsCause(t *testing.T) {
	w := run(t, imports+`
class TritonPythonModel:
    def execute(self, requests):
        if value(requests[0], "A")[0]:
            np.ones(1 << 30, np.uint8)
        return [give(SUM=np.array([os.getpid()], np.float32))]
`, options{config: numbers()})
	pid, err := strconv.Atoi(strings.SplitAfter(w.show(w.infer(ask(floats("A", 0)))), "=")[1])
	if err != nil {
		t.Fatal(err)
	}
	boundGroup(t, pid)
	w.fails(w.infer(ask(floats("A", 1))), errs.StubUnhealthy, "it was killed by the kernel: out of memory")
}

func TestADeathOfBoundedMemoryNamesTheBound(t *testing.T) {
	config := numbers()
	config.Parameters = map[string]string{"NEREID_STUB_MEMORY_BYTES": strconv.Itoa(1 << 30)}
	w := run(t, imports+`
class TritonPythonModel:
    def execute(self, requests):
        os.abort()
`, options{config: config})
	w.fails(w.infer(ask(floats("A", 1))), errs.StubUnhealthy, "it was ended by signal 6 (aborted); its memory is bounded to 1073741824 bytes")
}
