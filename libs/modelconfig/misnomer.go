package modelconfig

import (
	"strings"
	"unicode"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// correction says what was meant by a name that the format does not have, but
// that is met in other documents.
type correction struct {
	// in is the message's path without its indices; * is any.
	in, name, fix string
}

// corrections are the names that no likeness of spelling would lead from.
func corrections() []correction {
	return []correction{
		{"*", "shape", "did you mean dims?"},
		{"*", "dtype", "did you mean data_type?"},
		{"*", "type", "did you mean data_type?"},
		{"output", "labels", "name a file of labels, one in each line: label_filename: \"labels.txt\""},
		{"", "batch_size", "did you mean max_batch_size?"},
		{"", "max_batch", "did you mean max_batch_size?"},
		{"", "max_queue_delay", "write  dynamic_batching { max_queue_delay_microseconds: ... }"},
		{"", "preferred_batch_sizes", "write  dynamic_batching { preferred_batch_size: [ ... ] }"},
		{"", "instances", "did you mean instance_group?"},
		{"", "instance_count", "write  instance_group { count: ... }"},
		{"", "warmup", "did you mean model_warmup?"},
		{"", "ensemble", "did you mean ensemble_scheduling?"},
		{"", "cache", "did you mean response_cache?"},
		{"", "decoupled", "write  model_transaction_policy { decoupled: true }"},
		{"", "version", "did you mean version_policy?"},
		{"", "sequence_batcher", "did you mean sequence_batching?"},
		{"", "dynamic_batcher", "did you mean dynamic_batching?"},
		{"", "model_filename", "did you mean default_model_filename?"},
		{"", "execution_accelerators", "write  optimization { execution_accelerators { ... } }"},
		{"", "rate_limit_resources", "write  instance_group { rate_limiter { resources { name: \"R\" count: 1 } } }; the server has them by --rate-limit-resource"},
		{"instance_group", "rate_limit_resources", "write  rate_limiter { resources { name: \"R\" count: 1 } }"},
		{"instance_group", "device", "did you mean kind, or gpus?"},
		{"instance_group", "gpu_ids", "did you mean gpus?"},
		{"dynamic_batching", "timeout", "write  default_queue_policy { default_timeout_microseconds: ... }"},
		{"dynamic_batching", "max_queue_size", "write  default_queue_policy { max_queue_size: ... }"},
		{"dynamic_batching", "max_batch_size", "max_batch_size stands outside of dynamic_batching"},
		{"dynamic_batching", "enabled", "remove it; the section alone turns dynamic batching on"},
		{"dynamic_batching", "enable", "remove it; the section alone turns dynamic batching on"},
		{"sequence_batching", "generative_sequence", "did you mean iterative_sequence?"},
		{"model_repository_agents", "kind", "write  agents { name: \"checksum\" }; a version policy is no agent but the section version_policy"},
		{"model_repository_agents", "name", "write  agents { name: ... }"},
		{"model_repository_agents", "parameters", "write  agents { parameters { ... } }"},
		{"model_repository_agents.agents", "kind", "did you mean name? A version policy is no agent but the section version_policy"},
	}
}

// correct finds the correction of a name; empty if there is none.
func correct(path, name string) string {
	path = withoutIndices(path)
	for _, c := range corrections() {
		if c.name == name && (c.in == path || c.in == "*" && path != "") {
			return c.fix
		}
	}
	return ""
}

// fix says what to write instead of the name.
func (m misnomer) fix() string {
	if m.value {
		return suggest(m.name, m.known)
	}
	if fix := correct(m.path, m.name); fix != "" {
		return fix
	}
	name := snake(m.name)
	if m.path == "" && nearest(name, m.known) == "" {
		root := new(inference.ModelConfig).ProtoReflect().Descriptor()
		if section := home(root, name); section != "" {
			return "it belongs into " + section
		}
	}
	return suggest(name, m.known)
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
