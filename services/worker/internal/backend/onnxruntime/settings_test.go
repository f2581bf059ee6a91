//go:build cgo && linux

package onnxruntime_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/onnxruntime"
	"github.com/nereid-serving/nereid/services/worker/internal/cores"
)

// threads are the threads of the process.
func threads(t *testing.T) map[string]bool {
	t.Helper()
	list, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	ids := make(map[string]bool, len(list))
	for _, thread := range list {
		ids[thread.Name()] = true
	}
	return ids
}

// threadsBeside is how many threads of the process are not among those before. (Numbers alone would not tell: a thread
// that was joined is listed for a moment more.)
func threadsBeside(t *testing.T, before map[string]bool) int {
	t.Helper()
	fresh := 0
	for id := range threads(t) {
		if !before[id] {
			fresh++
		}
	}
	return fresh
}

// started is how many threads a session starts: the least of some loads, as
// the Go runtime starts threads of its own at any time.
func started(t *testing.T, b *onnxruntime.Backend, parameters map[string]string) int {
	t.Helper()
	least := 1 << 20
	v := version(t, onnxmodel.Relu(tensor.FP32, 2), reluConfig(parameters))
	for range 5 {
		before := threads(t)
		m, err := b.Load(context.Background(), v)
		if err != nil {
			t.Fatal(err)
		}
		least = min(least, threadsBeside(t, before))
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return least
}

func TestSessionsHaveTheThreadsThatAreSet(t *testing.T) {
	const many, more = "intra_op_thread_count", "inter_op_thread_count"
	tests := []struct {
		name       string
		settings   map[string]string
		parameters map[string]string
		want       int
	}{
		{"the shared ones by default", nil, nil, 0},
		{"the model's", nil, map[string]string{many: "5"}, 4},
		{"the model's across nodes in sequence, and its share of the cores", nil, map[string]string{more: "5"}, 2},
		{"the model's across nodes in parallel, and its share of the cores", nil, map[string]string{more: "5", "execution_mode": "1"}, 6},
		{"the backend's", map[string]string{many: "4"}, nil, 3},
		{"the model's before the backend's", map[string]string{many: "4"}, map[string]string{many: "1"}, 0},
		{"those of all sessions", map[string]string{"enable-global-threadpool": "1", many: "4"}, map[string]string{many: "7"}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := openWith(t, tt.settings)
			if got := started(t, b, tt.parameters); got != tt.want {
				t.Errorf("a session starts %d threads, want %d", got, tt.want)
			}
		})
	}
}

// openWith opens the backend with settings.
func openWith(t *testing.T, settings map[string]string) *onnxruntime.Backend {
	t.Helper()
	options, err := onnxruntime.Options{Pool: tensor.NewPool(0), Threads: 3}.With(settings)
	if err != nil {
		t.Fatal(err)
	}
	b, err := onnxruntime.Open(onnxmodel.Library(t), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func TestSharedThreadsRunModels(t *testing.T) {
	for name, tt := range map[string]struct {
		settings map[string]string
		least    int
	}{
		"by default":       {nil, 2},
		"of all sessions":  {map[string]string{"enable-global-threadpool": "true", "intra_op_thread_count": "9"}, 8},
		"beside a model's": {map[string]string{"inter_op_thread_count": "1"}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			before := threads(t)
			b := openWith(t, tt.settings)
			if got := threadsBeside(t, before); got < tt.least {
				t.Errorf("the pool has %d threads, want %d beside the caller", got, tt.least)
			}
			for range 2 {
				in := addSub(t, b, 8, 50000)
				got := run(t, in, addSubRequest(8, 50000, 3, 4))
				if d := cmp.Diff(addSubAnswer(8, 50000, 3, 4), outputs(t, got.response(0))); d != "" {
					t.Error("wrong answer")
				}
			}
		})
	}
}

func TestSettings(t *testing.T) {
	tests := []struct {
		key, value string
		want       onnxruntime.Options
		refused    bool
	}{
		{"enable-global-threadpool", "1", onnxruntime.Options{GlobalThreads: true}, false},
		{"enable-global-threadpool", "False", onnxruntime.Options{}, false},
		{"enable-global-threadpool", "maybe", onnxruntime.Options{}, true},
		{"intra_op_thread_count", "3", onnxruntime.Options{IntraOpThreads: 3}, false},
		{"intra_op_thread_count", "0", onnxruntime.Options{IntraOpThreads: -1}, false},
		{"inter_op_thread_count", "2", onnxruntime.Options{InterOpThreads: 2}, false},
		{"inter_op_thread_count", "-1", onnxruntime.Options{}, true},
		{"default-max-batch-size", "8", onnxruntime.Options{}, false},
		{"default-max-batch-size", "many", onnxruntime.Options{}, true},
		{"enable-memory-tracker", "0", onnxruntime.Options{}, false},
		{"enable-memory-tracker", "1", onnxruntime.Options{}, true},
		{"intra-op-thread-count", "1", onnxruntime.Options{}, true},
	}
	for _, tt := range tests {
		t.Run(tt.key+"="+tt.value, func(t *testing.T) {
			got, err := onnxruntime.Options{}.With(map[string]string{tt.key: tt.value})
			if tt.refused != (errs.Of(err) == errs.ConfigInvalid) || !tt.refused && err != nil {
				t.Fatalf("error %v", err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// ones is a model whose run holds INPUT0 ones: OUTPUT0 is their sum.
func ones() onnxmodel.Model {
	m := onnxmodel.Relu(tensor.FP32, 1)
	g := &m.Graph
	g.Inputs[0].Type = tensor.Int64
	one := onnxmodel.Tensor{Type: tensor.FP32, Shape: tensor.Shape{1}, Raw: []byte(pack([]float32{1}))}
	g.Nodes = []onnxmodel.Node{
		{Op: "ConstantOfShape", Inputs: []string{"INPUT0"}, Outputs: []string{"ones"}, Attrs: []onnxmodel.Attr{{Name: "value", Value: one}}},
		{Op: "ReduceSum", Inputs: []string{"ones"}, Outputs: []string{"OUTPUT0"}, Attrs: []onnxmodel.Attr{{Name: "keepdims", Value: int64(1)}}},
	}
	return m
}

// folded gives element INPUT0 of many ones, which the optimizer makes when it
// folds constants.
func folded() onnxmodel.Model {
	m := onnxmodel.Relu(tensor.FP32, 1)
	g := &m.Graph
	g.Inputs[0].Type = tensor.Int64
	g.Initializers = []onnxmodel.Tensor{
		{Name: "shape", Type: tensor.Int64, Shape: tensor.Shape{1}, Raw: []byte(pack([]int64{expanded}))},
		{Name: "one", Type: tensor.FP32, Shape: tensor.Shape{1}, Raw: []byte(pack([]float32{1}))},
	}
	g.Nodes = []onnxmodel.Node{
		{Op: "Expand", Inputs: []string{"one", "shape"}, Outputs: []string{"many"}},
		{Op: "Gather", Inputs: []string{"many", "INPUT0"}, Outputs: []string{"OUTPUT0"}},
	}
	return m
}

const expanded, expandedBytes = 16 << 20, 64 << 20

func TestGraphLevelDecidesWhetherConstantsAreFolded(t *testing.T) {
	b, _ := open(t)
	for level, folds := range map[int32]bool{-1: true, 0: true, 1: true, 2: false} {
		t.Run(strconv.Itoa(int(level)), func(t *testing.T) {
			c := config(0, ios(io("INPUT0", tensor.Int64, 1)), ios(io("OUTPUT0", tensor.FP32, 1)))
			c.GraphLevel = level
			v := version(t, folded(), c)
			before := resident(t)
			m, err := b.Load(context.Background(), v)
			if err != nil {
				t.Fatal(err)
			}
			grown := resident(t) - before
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			if folds != (grown > expandedBytes/2) {
				t.Errorf("the session holds %d MiB, want constants folded: %t", grown>>20, folds)
			}
		})
	}
}

func TestMemoryBetweenRuns(t *testing.T) {
	b, _ := open(t)
	tests := []struct {
		key, value string
		keeps      bool
	}{
		{"anything", "else", true},
		{"enable_mem_arena", "1", true},
		{"enable_mem_arena", "0", false},
		{"memory.enable_memory_arena_shrinkage", "cpu:0", false},
	}
	for _, tt := range tests {
		t.Run(tt.key+"="+tt.value, func(t *testing.T) {
			c := config(0, ios(io("INPUT0", tensor.Int64, 1)), ios(io("OUTPUT0", tensor.FP32, 1)))
			c.Parameters = map[string]string{tt.key: tt.value}
			in := instance(t, b, ones(), c)
			// The arena always keeps what it allocated first.
			sum(t, in, 1)
			before := resident(t)
			sum(t, in, expanded)
			if grown := resident(t) - before; tt.keeps != (grown > expandedBytes/2) {
				t.Errorf("the instance keeps %d MiB after its run, want it kept: %t", grown>>20, tt.keeps)
			}
		})
	}
}

// sum runs a model of ones.
func sum(t *testing.T, in backend.Instance, n int64) {
	t.Helper()
	got := outputs(t, run(t, in, request(1, value{"INPUT0", tensor.Int64, tensor.Shape{1}, pack([]int64{n})})).response(0))
	if d := cmp.Diff([]value{{"OUTPUT0", tensor.FP32, tensor.Shape{1}, pack([]float32{float32(n)})}}, got); d != "" {
		t.Error(d)
	}
}

// The runtime refuses runs that name the arena of a device that the session is not on.
func TestArenaShrinkageIsForTheDevicesThatAreThere(t *testing.T) {
	b, _ := open(t)
	for _, arenas := range []string{"cpu:0", "cpu:0;cpu:0", "cpu:0;gpu:0", "gpu:0"} {
		in := serve(t, b, version(t, onnxmodel.Relu(tensor.FP32, 2), reluConfig(map[string]string{"memory.enable_memory_arena_shrinkage": arenas})))
		outputs(t, run(t, in, request(0, value{"INPUT0", tensor.FP32, tensor.Shape{2}, pack([]float32{1, 2})})).response(0))
	}
}

func TestThreadsStayOnTheCoresOfTheirHostPolicy(t *testing.T) {
	if firstCore(t) == status(t, "self") {
		t.Skip("there is one core, on which all threads stay")
	}
	core, err := cores.Parse(firstCore(t))
	if err != nil {
		t.Fatal(err)
	}
	b, err := onnxruntime.Open(onnxmodel.Library(t), onnxruntime.Options{
		Pool: tensor.NewPool(0), IntraOpThreads: 4, Cores: map[string]cores.Set{"near": core, "model": core},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	c := config(0, ios(io("INPUT0", tensor.Int64, 1)), ios(io("OUTPUT0", tensor.FP32, 1)))
	for name, tt := range map[string]struct {
		groups []modelconfig.InstanceGroup
		want   int
	}{
		"that of CPUs by default":    {[]modelconfig.InstanceGroup{{Name: "a"}}, 0},
		"that of CPUs":               {[]modelconfig.InstanceGroup{{Name: "a", HostPolicy: "cpu"}}, 0},
		"one of its own":             {[]modelconfig.InstanceGroup{{Name: "a", HostPolicy: "near"}}, 3},
		"that of KIND_MODEL":         {[]modelconfig.InstanceGroup{{Name: "a", Kind: modelconfig.KindModel}}, 3},
		"one beside another of GPUs": {[]modelconfig.InstanceGroup{{Name: "g", Kind: modelconfig.KindGPU, HostPolicy: "far"}, {Name: "a", HostPolicy: "near"}}, 3},
	} {
		c.Groups = tt.groups
		before := pinned(t, firstCore(t))
		m, err := b.Load(context.Background(), version(t, ones(), c))
		if err != nil {
			t.Fatal(err)
		}
		session := pinned(t, firstCore(t))
		maps.DeleteFunc(session, func(id string, _ bool) bool { return before[id] }) // one of the last session's, joined, may be listed for a moment more
		if got := len(session); got != tt.want {
			t.Errorf("%s: the session has %d threads on the core, want %d", name, got, tt.want)
		}
		in, err := m.NewInstance(context.Background(), backend.InstanceSpec{Name: "m_0_0", Kind: modelconfig.KindCPU})
		if err != nil {
			t.Fatal(err)
		}
		sum(t, in, 100)
		if err := errors.Join(in.Close(), m.Close()); err != nil {
			t.Error(err)
		}
	}
	c.Groups = []modelconfig.InstanceGroup{{Name: "a", HostPolicy: "near"}, {Name: "b"}}
	const want = "instance group 'b' names host policy 'cpu', whose cores differ from those of group 'a': the groups share the model's session, give them one policy"
	if d := cmp.Diff(want, reject(t, b, version(t, ones(), c))); d != "" {
		t.Error(d)
	}
}

// firstCore is a core that this process may use.
func firstCore(t *testing.T) string {
	t.Helper()
	list := status(t, "self")
	return regexp.MustCompile(`^\d+`).FindString(list)
}

// pinned are the process's threads that stay on the core.
func pinned(t *testing.T, core string) map[string]bool {
	t.Helper()
	all := threads(t)
	maps.DeleteFunc(all, func(id string, _ bool) bool { return status(t, "self/task/"+id) != core })
	return all
}

// status is the list of cores that a process or thread may use.
func status(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("/proc/" + name + "/status")
	if err != nil {
		return "" // it has ended
	}
	return regexp.MustCompile(`Cpus_allowed_list:\s+(\S+)`).FindStringSubmatch(string(text))[1]
}
