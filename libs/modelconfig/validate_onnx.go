package modelconfig

import (
	"slices"
	"strconv"
	"strings"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// validateONNX checks the parameters that ONNX models are loaded with. Those
// of other names belong to nobody and are let be, as in Triton.
func (r *report) validateONNX(c *inference.ModelConfig) {
	if c.GetBackend() != engineONNX && c.GetPlatform() != "onnxruntime_onnx" {
		return
	}
	for _, key := range sortedKeys(c.GetParameters()) {
		at, value := entry("parameters", key), c.GetParameters()[key].GetStringValue()
		switch key {
		case "execution_mode":
			if value != "" && value != "0" && value != "1" {
				r.invalid(at, "use 0 for sequential execution, 1 for parallel",
					"Invalid configuration value provided. Expected values for execution_mode are 0 or 1 but got %s .", value)
			}
		case "intra_op_thread_count", "inter_op_thread_count":
			if _, err := strconv.ParseUint(value, 10, 16); err != nil {
				r.invalid(at, "give a number of threads, 0 for one per core", "parameter %s must be a number of threads, got %q", key, value)
			}
		case "enable_mem_arena", "enable_mem_pattern":
			if _, err := strconv.ParseBool(strings.ToLower(value)); err != nil {
				r.invalid(at, "use 1 or 0", "parameter %s must be true or false, got %q", key, value)
			}
		case "memory.enable_memory_arena_shrinkage":
			other := func(arena string) bool { return arena != "cpu:0" }
			if arenas := strings.Split(value, ";"); slices.ContainsFunc(arenas, other) {
				r.invalid(at, "use cpu:0, which is the arena of models on CPUs", "parameter %s names an arena that is not there: '%s'", key, value)
			}
		}
	}
}
