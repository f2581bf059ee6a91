package modelconfig

import (
	"cmp"
	"strings"
	"unicode"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// correction says what was meant by a name that the format does not have, but
// that is met in other documents.
type correction struct {
	// in is the message's path without its indices; * is any.
	in, name string
	// meant is the name of the field in the same place; empty if there is none.
	meant string
	// fix says what to do where the name alone does not.
	fix string
}

// corrections are the names that no likeness of spelling would lead from.
func corrections() []correction {
	return []correction{
		{"*", "shape", "dims", ""},
		{"*", "dtype", "data_type", ""},
		{"*", "type", "data_type", ""},
		{"output", "labels", "", "name a file of labels, one in each line: label_filename: \"labels.txt\""},
		{"", "batch_size", "max_batch_size", ""},
		{"", "max_batch", "max_batch_size", ""},
		{"", "max_queue_delay", "", "write  dynamic_batching { max_queue_delay_microseconds: ... }"},
		{"", "preferred_batch_sizes", "", "write  dynamic_batching { preferred_batch_size: [ ... ] }"},
		{"", "instances", "instance_group", ""},
		{"", "instance_count", "", "write  instance_group { count: ... }"},
		{"", "warmup", "model_warmup", ""},
		{"", "ensemble", "ensemble_scheduling", ""},
		{"", "cache", "response_cache", ""},
		{"", "decoupled", "", "write  model_transaction_policy { decoupled: true }"},
		{"", "version", "version_policy", ""},
		{"", "sequence_batcher", "sequence_batching", ""},
		{"", "dynamic_batcher", "dynamic_batching", ""},
		{"", "model_filename", "default_model_filename", ""},
		{"", "execution_accelerators", "", "write  optimization { execution_accelerators { ... } }"},
		{"", "rate_limit_resources", "", "write  instance_group { rate_limiter { resources { name: \"R\" count: 1 } } }; the server has them by --rate-limit-resource"},
		{"instance_group", "rate_limit_resources", "", "write  rate_limiter { resources { name: \"R\" count: 1 } }"},
		{"instance_group", "device", "", "did you mean kind, or gpus?"},
		{"instance_group", "gpu_ids", "gpus", ""},
		{"dynamic_batching", "timeout", "", "write  default_queue_policy { default_timeout_microseconds: ... }"},
		{"dynamic_batching", "max_queue_size", "", "write  default_queue_policy { max_queue_size: ... }"},
		{"dynamic_batching", "max_batch_size", "", "max_batch_size stands outside of dynamic_batching"},
		{"dynamic_batching", "enabled", "", "remove it; the section alone turns dynamic batching on"},
		{"dynamic_batching", "enable", "", "remove it; the section alone turns dynamic batching on"},
		{"sequence_batching", "generative_sequence", "iterative_sequence", ""},
		{"model_repository_agents", "kind", "", "write  agents { name: \"checksum\" }; a version policy is no agent but the section version_policy"},
		{"model_repository_agents", "name", "", "write  agents { name: ... }"},
		{"model_repository_agents", "parameters", "", "write  agents { parameters { ... } }"},
		{"model_repository_agents.agents", "kind", "name", "did you mean name? A version policy is no agent but the section version_policy"},
	}
}

// correct finds what was meant by a name that desc, at path, does not have:
// the field there, if there is one, and what to do.
func correct(path string, desc protoreflect.MessageDescriptor, name string) (meant, fix string) {
	bare := withoutIndices(path)
	for _, c := range corrections() {
		if c.name == name && (c.in == bare || c.in == "*" && desc.Fields().ByTextName(c.meant) != nil) {
			return c.meant, cmp.Or(c.fix, "did you mean "+c.meant+"?")
		}
	}
	known := fieldNames(desc)
	name = snake(name)
	meant = nearest(name, known)
	if path == "" && meant == "" {
		if section := home(desc, name); section != "" {
			return "", "it belongs into " + section
		}
	}
	return meant, suggest(name, known)
}

// snake turns the spelling of JSON documents, maxBatchSize, into that of this
// format.
func snake(name string) string {
	var b strings.Builder
	for i, c := range name {
		if unicode.IsUpper(c) && i > 0 && name != strings.ToUpper(name) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}

// withoutIndices turns input[0].reshape into input.reshape.
func withoutIndices(path string) string {
	for {
		before, rest, ok := strings.Cut(path, "[")
		if !ok {
			return path
		}
		_, after, _ := strings.Cut(rest, "]")
		path = before + after
	}
}
