package backends

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// OpenVINO is the name of the accelerator that runs ONNX models on CPUs by OpenVINO.
const OpenVINO = "openvino"

// OpenVINOProperties returns the properties by OpenVINO's names that the parameters of the
// accelerator ask for, and what is wrong with parameters. Those with names in capitals are
// properties themselves.
func OpenVINOProperties(parameters map[string]string) (properties map[string]string, faults []Fault) {
	properties = make(map[string]string)
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		value := parameters[key]
		wrong := func(fix string) {
			faults = append(faults, Fault{Parameter: key, Message: fmt.Sprintf("parameter %s of the Execution Accelerator '%s' is '%s'", key, OpenVINO, value), Fix: fix})
		}
		switch {
		case key == "precision":
			hint := map[string]string{"FP32": "f32", "BF16": "bf16", "FP16": "f16"}[value]
			if properties["INFERENCE_PRECISION_HINT"] = hint; hint == "" {
				wrong("use FP32, BF16 or FP16")
			}
		case key == "num_of_threads" || key == "num_streams":
			if n, err := strconv.ParseUint(value, 10, 16); err != nil || n == 0 {
				wrong("give a number, 1 or more")
			}
			properties[map[string]string{"num_of_threads": "INFERENCE_NUM_THREADS", "num_streams": "NUM_STREAMS"}[key]] = value
		case key == "cache_dir":
			if properties["CACHE_DIR"] = value; !filepath.IsAbs(value) {
				wrong("give an absolute path")
			}
		case key != "" && key == strings.ToUpper(key):
			properties[key] = value
		default:
			faults = append(faults, Fault{
				Parameter: key, Message: fmt.Sprintf("unknown parameter '%s' is provided for the Execution Accelerator '%s'", key, OpenVINO),
				Fix: "use precision, num_of_threads, num_streams, cache_dir, or a property of OpenVINO by its name in capitals",
			})
		}
	}
	return properties, faults
}

// checkAccelerator returns what is wrong with the parameters of an accelerator.
func checkAccelerator(name string, parameters map[string]string) (faults []Fault) {
	switch name {
	case OpenVINO:
		_, faults = OpenVINOProperties(parameters)
	case CUDA:
		_, faults = CUDAOptions(parameters)
	case TensorRT:
		_, faults = TensorRTOptions(parameters)
	}
	return faults
}
