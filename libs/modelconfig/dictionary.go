package modelconfig

import (
	"strings"

	"github.com/nereid-serving/nereid/libs/diagnostics"
)

// dictionary has the names of other documents and of other sections that people
// write in configurations.
func dictionary() diagnostics.Dictionary {
	return diagnostics.Dictionary{Corrections: corrections(), Alias: tensorAlias}
}

func corrections() []diagnostics.Correction {
	return []diagnostics.Correction{
		{In: "*", Name: "shape", Meant: "dims"},
		{In: "*", Name: "dtype", Meant: "data_type"},
		{In: "*", Name: "type", Meant: "data_type"},
		{In: "output", Name: "labels", Fix: "name a file of labels, one in each line: label_filename: \"labels.txt\""},
		{In: "", Name: "batch_size", Meant: "max_batch_size"},
		{In: "", Name: "max_batch", Meant: "max_batch_size"},
		{In: "", Name: "max_queue_delay", Fix: "write  dynamic_batching { max_queue_delay_microseconds: ... }"},
		{In: "", Name: "preferred_batch_sizes", Fix: "write  dynamic_batching { preferred_batch_size: [ ... ] }"},
		{In: "", Name: "instances", Meant: "instance_group"},
		{In: "", Name: "instance_count", Fix: "write  instance_group { count: ... }"},
		{In: "", Name: "warmup", Meant: "model_warmup"},
		{In: "", Name: "ensemble", Meant: "ensemble_scheduling"},
		{In: "", Name: "cache", Meant: "response_cache"},
		{In: "", Name: "decoupled", Fix: "write  model_transaction_policy { decoupled: true }"},
		{In: "", Name: "version", Meant: "version_policy"},
		{In: "", Name: "sequence_batcher", Meant: "sequence_batching"},
		{In: "", Name: "dynamic_batcher", Meant: "dynamic_batching"},
		{In: "", Name: "model_filename", Meant: "default_model_filename"},
		{In: "", Name: "execution_accelerators", Fix: "write  optimization { execution_accelerators { ... } }"},
		{In: "", Name: "rate_limit_resources", Fix: "write  instance_group { rate_limiter { resources { name: \"R\" count: 1 } } }; the server has them by --rate-limit-resource"},
		{In: "instance_group", Name: "rate_limit_resources", Fix: "write  rate_limiter { resources { name: \"R\" count: 1 } }"},
		{In: "instance_group", Name: "device", Fix: "did you mean kind, or gpus?"},
		{In: "instance_group", Name: "gpu_ids", Meant: "gpus"},
		{In: "dynamic_batching", Name: "timeout", Fix: "write  default_queue_policy { default_timeout_microseconds: ... }"},
		{In: "dynamic_batching", Name: "max_queue_size", Fix: "write  default_queue_policy { max_queue_size: ... }"},
		{In: "dynamic_batching", Name: "max_batch_size", Fix: "max_batch_size stands outside of dynamic_batching"},
		{In: "dynamic_batching", Name: "enabled", Fix: "remove it; the section alone turns dynamic batching on"},
		{In: "dynamic_batching", Name: "enable", Fix: "remove it; the section alone turns dynamic batching on"},
		{In: "sequence_batching", Name: "generative_sequence", Meant: "iterative_sequence"},
		{In: "model_repository_agents", Name: "kind", Fix: "write  agents { name: \"checksum\" }; a version policy is no agent but the section version_policy"},
		{In: "model_repository_agents", Name: "name", Fix: "write  agents { name: ... }"},
		{In: "model_repository_agents", Name: "parameters", Fix: "write  agents { parameters { ... } }"},
		{In: "model_repository_agents.agents", Name: "kind", Meant: "name", Fix: "did you mean name? A version policy is no agent but the section version_policy"},
	}
}

// tensorAlias maps the datatypes' wire and framework names that are spelled
// differently in a configuration.
func tensorAlias(name string) string {
	switch strings.TrimPrefix(strings.ToUpper(name), "TYPE_") {
	case "BYTES":
		return "TYPE_STRING"
	case "FLOAT", "FLOAT32":
		return "TYPE_FP32"
	case "DOUBLE", "FLOAT64":
		return "TYPE_FP64"
	case "FLOAT16", "HALF":
		return "TYPE_FP16"
	case "BFLOAT16":
		return "TYPE_BF16"
	}
	return ""
}
