package e2e

import "testing"

// TestPythonExamples has the real clients use the example models in Python, of which the
// router calls others.
func TestPythonExamples(t *testing.T) {
	s := start(t, examples(t))
	python(t, []string{"HTTP_URL=" + s.HTTP, "GRPC_URL=" + s.GRPC}, "test/e2e/clients/test_examples.py", "-v", "Tokenizer", "Words", "Router", "Snippet", "ReadDigit")
	s.wantMetrics(inFlight(0))
}
