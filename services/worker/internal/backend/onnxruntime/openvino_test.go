//go:build cgo

package onnxruntime_test

import (
	"context"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/onnxruntime"
)

// accelerated has a configuration ask for OpenVINO.
func accelerated(c *modelconfig.Config, parameters map[string]string) *modelconfig.Config {
	c.CPUAccelerators = []modelconfig.Accelerator{{Name: "openvino", Parameters: parameters}}
	return c
}

// needsOpenVINO skips a test where make deps has no library to fetch.
func needsOpenVINO(t *testing.T) {
	t.Helper()
	library := filepath.Join(filepath.Dir(onnxmodel.Library(t)), "..", "openvino", "libonnxruntime_providers_openvino_plugin.so")
	if _, err := os.Stat(library); err != nil {
		if runtime.GOARCH == "amd64" && os.Getenv("NEREID_REQUIRE_ONNXRUNTIME") != "" {
			t.Fatal(err)
		}
		t.Skipf("without OpenVINO: %v", err)
	}
	if cpu, err := os.ReadFile("/proc/cpuinfo"); err == nil && !strings.Contains(string(cpu), "GenuineIntel") {
		t.Skip("OpenVINO's provider supports Intel's processors alone")
	}
}

func floats(text string) []float32 {
	list := make([]float32, len(text)/4)
	for i := range list {
		list[i] = math.Float32frombits(binary.LittleEndian.Uint32([]byte(text[4*i:])))
	}
	return list
}

// What runs on OpenVINO gives what ONNX Runtime's own code gives, whatever the shapes,
// and is really run there.
func TestModelsOnOpenVINOGiveTheSame(t *testing.T) {
	needsOpenVINO(t)
	b, _ := open(t)
	digits, err := filepath.Abs("../../../../../examples/models/digits/1")
	if err != nil {
		t.Fatal(err)
	}
	load := func(c *modelconfig.Config) func(rows int64) []float32 {
		v := version(t, onnxmodel.Model{}, c)
		v.Dir = digits
		in := serve(t, b, v)
		return func(rows int64) []float32 {
			image := make([]float32, rows*64)
			for i := range image {
				image[i] = float32(i%17) / 16
			}
			out := outputs(t, run(t, in, request(rows, value{"image", tensor.FP32, tensor.Shape{rows, 1, 8, 8}, pack(image)})).response(0))
			return floats(out[0].Data)
		}
	}
	declared := func() *modelconfig.Config {
		return config(64, ios(io("image", tensor.FP32, 1, 8, 8)), ios(io("probabilities", tensor.FP32, 10)))
	}
	own, accelerated := load(declared()), load(accelerated(declared(), nil))
	for _, rows := range []int64{1, 3, 64, 1} {
		want, got := own(rows), accelerated(rows)
		if len(want) != len(got) || len(got) != int(rows)*10 {
			t.Fatalf("%d rows: %d numbers, want %d", rows, len(got), len(want))
		}
		for i := range want {
			if math.Abs(float64(want[i]-got[i])) > 1e-4 {
				t.Fatalf("%d rows: number %d is %v, want %v", rows, i, got[i], want[i])
			}
		}
	}
	mapped, err := os.ReadFile("/proc/self/maps")
	if err != nil || !strings.Contains(string(mapped), "libopenvino_intel_cpu_plugin.so") {
		t.Errorf("OpenVINO's code for CPUs is not in use: %v", err)
	}
}

// Instances run beside each other, and what OpenVINO does not know ONNX Runtime runs.
func TestInstancesOnOpenVINO(t *testing.T) {
	needsOpenVINO(t)
	b, _ := open(t)
	for name, d := range map[string]tensor.Datatype{"a batch of numbers": tensor.FP32, "a batch of switches": tensor.Bool} {
		t.Run(name, func(t *testing.T) {
			c := accelerated(config(8, ios(io("INPUT0", d, -1)), ios(io("OUTPUT0", d, -1))), map[string]string{"num_streams": "2"})
			v := version(t, onnxmodel.Identity(d, "b", "n"), c)
			data := pattern(d, 12)
			var running sync.WaitGroup
			for range 4 {
				in := serve(t, b, v)
				running.Go(func() {
					for range 50 {
						batch := newBatch(t, request(3, value{"INPUT0", d, tensor.Shape{3, 4}, data}))
						in.Execute(batch)
						if r := batch.responses[0][0]; r.Err != nil {
							t.Error(r.Err)
						} else if got, err := r.Outputs[0].Data.Bytes(); err != nil || string(got) != data {
							t.Errorf("%v, %v", got, err)
						}
						batch.responses[0][0].Release()
					}
				})
			}
			running.Wait()
		})
	}
}

func TestWithoutOpenVINO(t *testing.T) {
	pool := tensor.NewPool(1 << 20)
	open := func(library string) *onnxruntime.Backend {
		t.Helper()
		b, err := onnxruntime.Open(onnxmodel.Library(t), onnxruntime.Options{Pool: pool, OpenVINOLibrary: library})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	none := filepath.Join(t.TempDir(), "none.so")
	other := filepath.Join(t.TempDir(), "other.so")
	if err := os.WriteFile(other, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	declared := func() *modelconfig.Config {
		return config(0, ios(io("INPUT0", tensor.FP32, 1)), ios(io("OUTPUT0", tensor.FP32, 1)))
	}
	for _, tt := range []struct {
		name, library string
		parameters    map[string]string
		says          []string
	}{
		{"no library", none, nil, []string{none, "make deps", "openvino-library=FILE", "remove cpu_execution_accelerator"}},
		{"another file", other, nil, []string{other, "cannot be opened"}},
		{"a parameter that is none", none, map[string]string{"precision": "FP12"}, []string{"precision", "FP12", "use FP32, BF16 or FP16"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := open(tt.library)
			defer b.Close()
			_, err := b.Load(context.Background(), version(t, onnxmodel.Identity(tensor.FP32, 1), accelerated(declared(), tt.parameters)))
			if errs.Of(err) != errs.LoadFailed {
				t.Fatalf("%v, want load_failed", err)
			}
			for _, want := range tt.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
			// Other models are not affected.
			loaded, err := b.Load(context.Background(), version(t, onnxmodel.Identity(tensor.FP32, 1), declared()))
			if err != nil {
				t.Fatal(err)
			}
			if err := loaded.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTextsDoNotRunOnOpenVINO(t *testing.T) {
	b, _ := open(t)
	c := accelerated(config(0, ios(io("INPUT0", tensor.Bytes, 1)), ios(io("OUTPUT0", tensor.Bytes, 1))), nil)
	_, err := b.Load(context.Background(), version(t, onnxmodel.Identity(tensor.Bytes, 1), c))
	if errs.Of(err) != errs.LoadFailed || !strings.Contains(err.Error(), "'INPUT0' is of TYPE_STRING") {
		t.Errorf("%v", err)
	}
}

func TestPropertiesReachOpenVINO(t *testing.T) {
	needsOpenVINO(t)
	b, _ := open(t)
	cache := t.TempDir()
	c := accelerated(config(0, ios(io("INPUT0", tensor.FP32, 4)), ios(io("OUTPUT0", tensor.FP32, 4))), map[string]string{
		"cache_dir": cache, "num_of_threads": "1", "PERFORMANCE_HINT": "LATENCY",
	})
	in := instance(t, b, onnxmodel.Relu(tensor.FP32, 4), c)
	got := outputs(t, run(t, in, request(1, value{"INPUT0", tensor.FP32, tensor.Shape{4}, pack([]float32{-1, 2, -3, 4})})).response(0))
	if diff := cmp.Diff([]float32{0, 2, 0, 4}, floats(got[0].Data)); diff != "" {
		t.Error(diff)
	}
	entries, err := os.ReadDir(cache)
	if err != nil || !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return strings.HasSuffix(e.Name(), ".blob") }) {
		t.Errorf("the cache has %v, %v", entries, err)
	}
	wrong := accelerated(config(0, c.Inputs, c.Outputs), map[string]string{"NO_SUCH_PROPERTY": "1"})
	if _, err := b.Load(context.Background(), version(t, onnxmodel.Relu(tensor.FP32, 4), wrong)); errs.Of(err) != errs.LoadFailed || !strings.Contains(err.Error(), "NO_SUCH_PROPERTY") {
		t.Errorf("a property that is none: %v", err)
	}
}
