package e2e

import (
	"os"
	"path/filepath"
	"testing"
)

// pythonModels starts a deployment on a copy of the Python models of the tests.
func pythonModels(t *testing.T) *server {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "python"))); err != nil {
		t.Fatal(err)
	}
	// nested is a second model of the source of calls, so that one can call the other.
	if err := os.CopyFS(filepath.Join(dir, "nested"), os.DirFS(filepath.Join(dir, "calls"))); err != nil {
		t.Fatal(err)
	}
	return start(t, dir)
}

// TestRealClientsOfPythonModels has the real clients use Python models: tensors of all
// sizes, many requests at once, streams, parameters and errors.
func TestRealClientsOfPythonModels(t *testing.T) {
	s := pythonModels(t)
	python(t, []string{"HTTP_URL=" + s.HTTP, "GRPC_URL=" + s.GRPC}, "test/e2e/clients/test_python.py", "-v", "Models")
	s.wantMetrics(inFlight(0))
}

// TestPythonModelsCallOthers has Python models call others in each of Triton's ways,
// which are unsupported where the gateway is another process.
func TestPythonModelsCallOthers(t *testing.T) {
	s := pythonModels(t)
	tests := "Calls"
	if clustered() {
		tests = "CallsApart"
	}
	python(t, []string{"HTTP_URL=" + s.HTTP, "GRPC_URL=" + s.GRPC}, "test/e2e/clients/test_python.py", "-v", tests)
	s.wantMetrics(inFlight(0))
}
