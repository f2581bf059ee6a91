package backends_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/backends"
)

func ExampleFind() {
	d, _ := backends.Find("onnxruntime")
	fmt.Println(d.File(), d.Formats[0].Platform, d.RunsCode)
	// Output: model.onnx onnxruntime_onnx false
}

func TestEveryBackendIsToldApart(t *testing.T) {
	names, platforms, files := make(map[string]bool), make(map[string]bool), make(map[string]bool)
	once := func(seen map[string]bool, what, key string) {
		if key != "" && seen[key] {
			t.Errorf("%s %q is there twice", what, key)
		}
		seen[key] = true
	}
	for _, d := range backends.All() {
		once(names, "name", d.Name)
		standard := 0
		for _, f := range d.Formats {
			once(platforms, "platform", f.Platform)
			for _, alias := range f.Aliases {
				once(platforms, "platform", alias)
			}
			once(files, "file", f.File)
			if f.Standard {
				standard++
			}
		}
		if d.Name == "" || !d.CPU && !d.GPU {
			t.Errorf("backend %q has no name, or no device", d.Name)
		}
		if standard > 1 || standard == 0 && len(d.Formats) == 1 {
			t.Errorf("backend %q has %d standard formats", d.Name, standard)
		}
		if (d.FileRequired || d.Header != nil) && d.File() == "" {
			t.Errorf("backend %q needs a model file, and none has a name", d.Name)
		}
	}
}

// TestWhatIsExecutedIsKnown pins what the load API may not bring by default.
func TestWhatIsExecutedIsKnown(t *testing.T) {
	var code []string
	for _, d := range backends.All() {
		if d.RunsCode {
			code = append(code, d.Name)
		}
	}
	slices.Sort(code)
	if diff := cmp.Diff([]string{"dali", "openvino", "python", "pytorch", "tensorflow"}, code); diff != "" {
		t.Errorf("backends that run code (-want +got):\n%s", diff)
	}
}

func TestNamesBySet(t *testing.T) {
	if diff := cmp.Diff([]string{"dyna_sequence", "echo", "identity", "onnxruntime", "openvino", "python", "pytorch", "repeat", "sequence", "square", "tensorflow", "tensorrt"}, backends.BuiltIn()); diff != "" {
		t.Errorf("built in (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"onnxruntime", "tensorrt"}, backends.WithHeader()); diff != "" {
		t.Errorf("with a header (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"openvino", "pytorch", "tensorflow"}, backends.Hosted()); diff != "" {
		t.Errorf("hosted (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"onnxruntime", "openvino", "tensorflow", "tensorrt"}, backends.Completed()); diff != "" {
		t.Errorf("completed (-want +got):\n%s", diff)
	}
	if _, ok := backends.Find("nosuch"); ok || backends.Get("nosuch").FileRequired {
		t.Error("a backend was found that is not there")
	}
}

func TestFormatsByPlatform(t *testing.T) {
	torch := backends.Get("pytorch")
	if f := torch.Formats[0]; !f.Is("pytorch_libtorch") || !f.Is("libtorch") || f.Is("") || f.Is("torch_aoti") {
		t.Error("platforms of model.pt")
	}
	if got := torch.File(); got != "model.pt" {
		t.Errorf("standard file %q", got)
	}
	if got := backends.Get("tensorflow").File(); got != "" {
		t.Errorf("standard file %q, want none: the files tell", got)
	}
}

func TestValuesHaveTritonsTexts(t *testing.T) {
	for _, tt := range []struct{ got, want any }{
		{text(backends.ParseInt("-7")), "-7"},
		{text(backends.ParseInt("many")), "failed to convert 'many' to integral number"},
		{text(backends.ParseBool("ON")), "true"},
		{text(backends.ParseBool("0")), "false"},
		{text(backends.ParseBool("maybe")), "failed to convert 'maybe' to boolean"},
		{text(backends.ParseThreads("-1")), "0"},
		{text(backends.ParseThreads("65537")), "65537 are more than 65536 threads"},
		{text(backends.ParseExecutionMode("1")), "true"},
		{text(backends.ParseExecutionMode("")), "false"},
		{text(backends.ParseExecutionMode("2")), "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got 2 ."},
	} {
		if tt.got != tt.want {
			t.Errorf("%q, want %q", tt.got, tt.want)
		}
	}
}

func text[T any](v T, err error) string {
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(v)
}

func TestParametersOfONNXModels(t *testing.T) {
	for _, tt := range []struct {
		key, value string
		fault      bool
	}{
		{"execution_mode", "", false},
		{"execution_mode", "1", false},
		{"execution_mode", "2", true},
		{"intra_op_thread_count", "4", false},
		{"intra_op_thread_count", "-1", false},
		{"inter_op_thread_count", "65536", false},
		{"inter_op_thread_count", "65537", true},
		{"inter_op_thread_count", "many", true},
		{"enable_mem_arena", "TRUE", false},
		{"enable_mem_pattern", "off", false},
		{"enable_mem_pattern", "yes", true},
		{"memory.enable_memory_arena_shrinkage", "cpu:0", false},
		{"memory.enable_memory_arena_shrinkage", "cpu:0;gpu:0", false},
		{"memory.enable_memory_arena_shrinkage", "cpu:0;gpu:x", true},
		{"gpu_mem_limit", "1073741824", false},
		{"gpu_mem_limit", "all", true},
		{"arena_extend_strategy", "1", false},
		{"cudnn_conv_algo_search", "3", true},
		{"do_copy_in_default_stream", "true", false},
		{"anything", "else", false},
	} {
		faults := backends.Get("onnxruntime").CheckParameters(map[string]string{tt.key: tt.value})
		if (len(faults) > 0) != tt.fault || len(faults) > 0 && (faults[0].Parameter != tt.key || faults[0].Message == "" || faults[0].Fix == "") {
			t.Errorf("%s=%q: %+v, want a fault: %v", tt.key, tt.value, faults, tt.fault)
		}
	}
	two := backends.Get("onnxruntime").CheckParameters(map[string]string{"execution_mode": "x", "enable_mem_arena": "x"})
	if len(two) != 2 || two[0].Parameter != "enable_mem_arena" {
		t.Errorf("two faults: %+v, want them by name", two)
	}
}

func TestParametersOfOpenVINO(t *testing.T) {
	properties, faults := backends.OpenVINOProperties(map[string]string{
		"precision": "BF16", "num_of_threads": "4", "num_streams": "2", "cache_dir": "/cache", "PERFORMANCE_HINT": "LATENCY",
	})
	want := map[string]string{
		"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": "4", "NUM_STREAMS": "2", "CACHE_DIR": "/cache", "PERFORMANCE_HINT": "LATENCY",
	}
	if !maps.Equal(properties, want) || faults != nil {
		t.Errorf("%v, %v", properties, faults)
	}
	for key, value := range map[string]string{"precision": "fp32", "num_of_threads": "0", "num_streams": "-1", "cache_dir": "cache", "device_type": "GPU", "": "x"} {
		if _, faults := backends.OpenVINOProperties(map[string]string{key: value}); len(faults) != 1 || faults[0].Parameter != key || faults[0].Fix == "" {
			t.Errorf("%s=%s: %v", key, value, faults)
		}
	}
	if faults := backends.Get("onnxruntime").CheckAccelerator("openvino", map[string]string{"precision": "x"}); len(faults) != 1 {
		t.Errorf("%v", faults)
	}
}

func TestParametersOfCUDA(t *testing.T) {
	options, faults := backends.CUDAOptions(map[string]string{
		"cudnn_conv_algo_search": "1", "arena_extend_strategy": "kSameAsRequested", "use_tf32": "false", "gpu_mem_limit": "1000", "enable_cuda_graph": "0",
	})
	want := map[string]string{"cudnn_conv_algo_search": "HEURISTIC", "arena_extend_strategy": "kSameAsRequested", "use_tf32": "0", "gpu_mem_limit": "1000"}
	if !maps.Equal(options, want) || len(faults) > 0 {
		t.Errorf("%v, %+v, want %v", options, faults, want)
	}
	for key, value := range map[string]string{"device_id": "1", "use_tf32": "maybe", "enable_cuda_graph": "1", "gpu_memory": "5", "gpu_mem_limit": "0"} {
		_, faults := backends.CUDAOptions(map[string]string{key: value})
		if len(faults) != 1 || faults[0].Parameter != key || faults[0].Fix == "" || !strings.Contains(faults[0].Message, key) {
			t.Errorf("%s=%s: %+v, want a fault", key, value, faults)
		}
	}
}

func TestParametersOfTensorRT(t *testing.T) {
	options, faults := backends.TensorRTOptions(map[string]string{
		"precision_mode": "FP16", "max_workspace_size_bytes": "1073741824", "trt_engine_cache_enable": "True", "trt_engine_cache_path": "/engines", "int8_calibration_table_name": "t",
	})
	want := map[string]string{
		"trt_fp16_enable": "1", "trt_max_workspace_size": "1073741824", "trt_engine_cache_enable": "1", "trt_engine_cache_path": "/engines", "trt_int8_calibration_table_name": "t",
	}
	if !maps.Equal(options, want) || len(faults) > 0 {
		t.Errorf("%v, %+v, want %v", options, faults, want)
	}
	_, faults = backends.TensorRTOptions(map[string]string{"trt_fp16": "1"})
	if len(faults) != 1 || faults[0].Message != "unknown parameter 'trt_fp16' is provided for TensorRT Execution Accelerator" {
		t.Errorf("%+v", faults)
	}
	check := backends.Get("onnxruntime").CheckAccelerator
	if len(check("tensorrt", map[string]string{"precision_mode": "FP8"})) != 1 || len(check("cuda", map[string]string{"precision_mode": "FP16"})) != 1 {
		t.Error("parameters of accelerators are not checked")
	}
}
