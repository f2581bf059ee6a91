package e2e

import "testing"

// TestPythonExamples has the real clients use the example models in Python. The router calls
// others, which is unsupported where the gateway is another process.
func TestPythonExamples(t *testing.T) {
	s := start(t, examples(t))
	tests := []string{"Tokenizer", "Words", "Router"}
	if clustered() {
		tests[2] = "RouterApart"
	}
	python(t, []string{"HTTP_URL=" + s.HTTP, "GRPC_URL=" + s.GRPC}, append([]string{"test/e2e/clients/test_examples.py", "-v"}, tests...)...)
	s.wantMetrics(inFlight(0))
}
