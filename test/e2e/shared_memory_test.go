package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// TestClientsShareMemory has the real clients send and receive tensors in /dev/shm.
func TestClientsShareMemory(t *testing.T) {
	io := func(kind, of, datatype string) string {
		return fmt.Sprintf("%s { name: %q data_type: %s dims: [ -1 ] }\n", kind, of, datatype)
	}
	numbers := "backend: \"echo\"\nmax_batch_size: 8\n" +
		io("input", "INPUT0", "TYPE_INT32") + io("input", "INPUT1", "TYPE_INT32") + io("output", "OUTPUT0", "TYPE_INT32") + io("output", "OUTPUT1", "TYPE_INT32")
	fixed := strings.ReplaceAll(numbers, "[ -1 ]", "[ 16 ]")
	s := start(t, repository(t, map[string]string{
		"numbers/config.pbtxt": fixed, "numbers/1/.keep": "",
		"known/config.pbtxt": fixed + "response_cache { enable: true }\n", "known/1/.keep": "",
		"words/config.pbtxt": "backend: \"echo\"\nmax_batch_size: 8\n" + io("input", "INPUT0", "TYPE_STRING") + io("output", "OUTPUT0", "TYPE_STRING"), "words/1/.keep": "",
		"chained/config.pbtxt": strings.Replace(fixed, "backend: \"echo\"", "platform: \"ensemble\"", 1) + `
			ensemble_scheduling { step { model_name: "numbers" model_version: -1
				input_map { key: "INPUT0" value: "INPUT0" } input_map { key: "INPUT1" value: "INPUT1" }
				output_map { key: "OUTPUT0" value: "OUTPUT0" } output_map { key: "OUTPUT1" value: "OUTPUT1" } } }`, "chained/1/.keep": "",
	}), "--allow-client-shm=true", "--cache-config=local,size=1048576")
	python(t, []string{"HTTP_URL=" + s.HTTP, "GRPC_URL=" + s.GRPC}, "test/e2e/clients/test_shared_memory.py", "-v")
	s.wantMetrics("nereid_gateway_shared_memory_regions 0", "nereid_gateway_shared_memory_bytes 0")
}
