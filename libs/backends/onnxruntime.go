package backends

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nereid-serving/nereid/libs/onnxheader"
)

// ONNXRuntime is the name of the backend for ONNX models.
const ONNXRuntime = "onnxruntime"

func onnxRuntime() Descriptor {
	return Descriptor{
		Name:            ONNXRuntime,
		Engine:          true,
		Formats:         []Format{{Platform: "onnxruntime_onnx", File: "model.onnx", Standard: true}},
		BuiltIn:         true,
		FileRequired:    true,
		CPU:             true,
		GPU:             true,
		CPUInstances:    2,
		BatchTensors:    true,
		Padding:         true,
		CPUAccelerators: []string{OpenVINO},
		GPUAccelerators: []string{CUDA, TensorRT},
		Header:          onnxheader.Read,
		CheckParameters: checkONNXRuntime, CheckAccelerator: checkAccelerator,
	}
}

// checkONNXRuntime checks the parameters that ONNX models are loaded with. Those
// of other names belong to nobody and are let be, as in Triton.
func checkONNXRuntime(parameters map[string]string) (faults []Fault) {
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		value := parameters[key]
		var err error
		var fix string
		switch key {
		case "execution_mode":
			_, err = ParseExecutionMode(value)
			fix = "use 0 for sequential execution, 1 for parallel"
		case "intra_op_thread_count", "inter_op_thread_count":
			_, err = ParseThreads(value)
			fix = "give a number of threads, 0 for one per core"
		case "enable_mem_arena", "enable_mem_pattern":
			_, err = ParseBool(value)
			fix = "use 1 or 0"
		case "memory.enable_memory_arena_shrinkage":
			if slices.ContainsFunc(strings.Split(value, ";"), notArena) {
				err = fmt.Errorf("there is no such arena: '%s'", value)
			}
			fix = "use cpu:0 for models on CPUs, and gpu: with the GPU's number, such as cpu:0;gpu:0, for those on GPUs"
		}
		if err != nil {
			faults = append(faults, Fault{Parameter: key, Message: fmt.Sprintf("parameter %s: %v", key, err), Fix: fix})
		}
	}
	_, more := CUDAOptions(CUDAParameters(parameters))
	for _, f := range more {
		faults = append(faults, Fault{Parameter: f.Parameter, Message: fmt.Sprintf("parameter %s is '%s'", f.Parameter, parameters[f.Parameter]), Fix: f.Fix})
	}
	return faults
}

// notArena reports whether there is no such arena of a session.
func notArena(name string) bool {
	number, gpu := strings.CutPrefix(name, "gpu:")
	if _, err := strconv.ParseUint(number, 10, 15); gpu && err == nil {
		return false
	}
	return name != "cpu:0"
}
