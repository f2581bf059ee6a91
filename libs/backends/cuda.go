package backends

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The names of the accelerators that run ONNX models on NVIDIA's GPUs.
const (
	CUDA     = "cuda"
	TensorRT = "tensorrt"
)

// option is what an accelerator's parameter is.
type option struct {
	// name is the provider's name for it; empty is the parameter's own.
	name string
	// fix says what a value may be, as an instruction; check reports whether one is that.
	fix   string
	check func(value string) bool
	// values translates values, of which there are no others.
	values map[string]string
}

func word(words ...string) option {
	return option{fix: "use " + alternatives(words), check: func(v string) bool { return slices.Contains(words, v) }}
}

func alternatives(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

func whole(least int64) option {
	return option{fix: fmt.Sprintf("give a whole number, %d or more", least), check: func(v string) bool {
		n, err := strconv.ParseInt(v, 10, 64)
		return err == nil && n >= least
	}}
}

// onOff takes what Triton takes, and gives providers 1 and 0.
func onOff() option {
	return option{fix: "use 1 or 0", values: map[string]string{
		"0": "0", "1": "1", "true": "1", "false": "0", "True": "1", "False": "0",
	}}
}

func absolute() option {
	return option{fix: "give an absolute path", check: filepath.IsAbs}
}

func text() option { return option{fix: "give a text", check: func(v string) bool { return v != "" }} }

func (o option) as(name string) option { o.name = name; return o }

// cudaOptions are the options of ONNX Runtime's CUDA execution provider, in its second
// version, but for those that belong to who runs it.
func cudaOptions() map[string]option {
	return map[string]option{
		"gpu_mem_limit":                      whole(1),
		"arena_extend_strategy":              {fix: "use kNextPowerOfTwo or kSameAsRequested", values: map[string]string{"0": "kNextPowerOfTwo", "1": "kSameAsRequested", "kNextPowerOfTwo": "kNextPowerOfTwo", "kSameAsRequested": "kSameAsRequested"}},
		"cudnn_conv_algo_search":             {fix: "use EXHAUSTIVE, HEURISTIC or DEFAULT", values: map[string]string{"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT", "EXHAUSTIVE": "EXHAUSTIVE", "HEURISTIC": "HEURISTIC", "DEFAULT": "DEFAULT"}},
		"do_copy_in_default_stream":          onOff(),
		"cudnn_conv_use_max_workspace":       onOff(),
		"cudnn_conv1d_pad_to_nc1d":           onOff(),
		"tunable_op_enable":                  onOff(),
		"tunable_op_tuning_enable":           onOff(),
		"tunable_op_max_tuning_duration_ms":  whole(0),
		"enable_skip_layer_norm_strict_mode": onOff(),
		"prefer_nhwc":                        onOff(),
		"use_ep_level_unified_stream":        onOff(),
		"use_tf32":                           onOff(),
		"fuse_conv_bias":                     onOff(),
		"sdpa_kernel":                        whole(0),
	}
}

// tensorRTOptions are the parameters of Triton's TensorRT accelerator, by the names of ONNX
// Runtime's provider.
func tensorRTOptions() map[string]option {
	return map[string]option{
		"max_workspace_size_bytes":          whole(1).as("trt_max_workspace_size"),
		"int8_calibration_table_name":       text().as("trt_int8_calibration_table_name"),
		"int8_use_native_calibration_table": onOff().as("trt_int8_use_native_calibration_table"),
		"trt_max_partition_iterations":      whole(1),
		"trt_min_subgraph_size":             whole(1),
		"trt_dla_core":                      whole(0),
		"trt_engine_cache_path":             absolute(),
		"trt_engine_cache_prefix":           text(),
		"trt_timing_cache_path":             absolute(),
		"trt_builder_optimization_level":    whole(0),
		"trt_auxiliary_streams":             whole(-1),
		"trt_tactic_sources":                text(),
		"trt_extra_plugin_lib_paths":        text(),
		"trt_profile_min_shapes":            text(),
		"trt_profile_max_shapes":            text(),
		"trt_profile_opt_shapes":            text(),
		"trt_ep_context_file_path":          text(),
		"trt_ep_context_embed_mode":         word("0", "1"),
		"precision_mode":                    word("FP32", "FP16", "BF16", "INT8"),
		"trt_dla_enable":                    onOff(),
		"trt_engine_cache_enable":           onOff(),
		"trt_dump_subgraphs":                onOff(),
		"trt_force_sequential_engine_build": onOff(),
		"trt_context_memory_sharing_enable": onOff(),
		"trt_layer_norm_fp32_fallback":      onOff(),
		"trt_timing_cache_enable":           onOff(),
		"trt_force_timing_cache":            onOff(),
		"trt_detailed_build_log":            onOff(),
		"trt_build_heuristics_enable":       onOff(),
		"trt_sparsity_enable":               onOff(),
		"trt_cuda_graph_enable":             onOff(),
		"trt_dump_ep_context_model":         onOff(),
		"trt_engine_hw_compatible":          onOff(),
		"trt_weight_stripped_engine_enable": onOff(),
		"trt_onnx_model_folder_path":        absolute(),
		"trt_preview_features":              text(),
		"trt_op_types_to_exclude":           text(),
		"trt_load_user_initializer":         onOff(),
		"trt_dla_local_dram_size":           whole(0),
		"trt_engine_decryption_enable":      {fix: "remove it: encrypted engines need a library of their own"},
		"trt_engine_decryption_lib_path":    {fix: "remove it: encrypted engines need a library of their own"},
	}
}

// ofWorker are options of the providers that the worker sets: which device, which stream.
func ofWorker(key string) bool {
	return slices.Contains([]string{
		"device_id", "user_compute_stream", "has_user_compute_stream", "gpu_external_alloc", "gpu_external_free", "gpu_external_empty_cache", "default_memory_arena_cfg",
	}, key)
}

// CUDAOptions returns the options of ONNX Runtime's CUDA provider that the parameters of the
// accelerator ask for, and what is wrong with parameters.
func CUDAOptions(parameters map[string]string) (options map[string]string, faults []Fault) {
	if _, ok := parameters["enable_cuda_graph"]; ok {
		parameters = maps.Clone(parameters)
		if on := parameters["enable_cuda_graph"]; on != "0" && !strings.EqualFold(on, "false") {
			faults = append(faults, Fault{
				Parameter: "enable_cuda_graph", Message: "parameter enable_cuda_graph of the Execution Accelerator 'cuda' is not supported: batches have many sizes, and a graph has one",
				Fix: "remove it",
			})
		}
		delete(parameters, "enable_cuda_graph")
	}
	options, more := accelerate(CUDA, "the CUDA execution provider", cudaOptions(), parameters)
	return options, append(faults, more...)
}

// TensorRTOptions is [CUDAOptions] for TensorRT. A precision but FP32 is one that TensorRT may
// choose beside it.
func TensorRTOptions(parameters map[string]string) (options map[string]string, faults []Fault) {
	options, faults = accelerate(TensorRT, "TensorRT", tensorRTOptions(), parameters)
	switch options["precision_mode"] {
	case "FP16":
		options["trt_fp16_enable"] = "1"
	case "BF16":
		options["trt_bf16_enable"] = "1"
	case "INT8":
		options["trt_int8_enable"] = "1"
	}
	delete(options, "precision_mode")
	return options, faults
}

func accelerate(accelerator, provider string, known map[string]option, parameters map[string]string) (options map[string]string, faults []Fault) {
	options = make(map[string]string, len(parameters))
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		o, ok := known[key]
		value, valid := o.read(parameters[key])
		switch {
		case ofWorker(key):
			faults = append(faults, Fault{
				Parameter: key, Message: fmt.Sprintf("parameter %s of the Execution Accelerator '%s' is set by the worker", key, accelerator), Fix: "remove it",
			})
		case !ok:
			faults = append(faults, Fault{
				Parameter: key, Message: fmt.Sprintf("unknown parameter '%s' is provided for %s Execution Accelerator", key, map[string]string{CUDA: "CUDA", TensorRT: "TensorRT"}[accelerator]),
				Fix: fmt.Sprintf("use an option of %s: %s", provider, strings.Join(slices.Sorted(maps.Keys(known)), ", ")),
			})
		case !valid:
			faults = append(faults, Fault{
				Parameter: key, Message: fmt.Sprintf("parameter %s of the Execution Accelerator '%s' is '%s'", key, accelerator, parameters[key]), Fix: o.fix,
			})
		case o.name != "":
			options[o.name] = value
		default:
			options[key] = value
		}
	}
	return options, faults
}

// read returns a value as the provider takes it, and whether it may be one.
func (o option) read(value string) (string, bool) {
	if o.values != nil {
		v, ok := o.values[value]
		return v, ok
	}
	return value, o.check != nil && o.check(value)
}

// CUDAParameters are a model's parameters, by the older way, that mean options of the CUDA
// provider.
func CUDAParameters(parameters map[string]string) map[string]string {
	options := make(map[string]string)
	for _, key := range []string{"cudnn_conv_algo_search", "gpu_mem_limit", "arena_extend_strategy", "do_copy_in_default_stream"} {
		if value, ok := parameters[key]; ok {
			options[key] = value
		}
	}
	return options
}
