package e2e

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// interpreter is the Python that has numpy and what the real clients need.
func interpreter(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("NEREID_PYTHON"); path != "" {
		return path
	}
	return filepath.Join(root(t), ".deps", "venv", "bin", "python")
}

// python runs a program with the real clients.
func python(t *testing.T, env []string, args ...string) string {
	t.Helper()
	interpreter := interpreter(t)
	if _, err := os.Stat(interpreter); err != nil {
		t.Fatalf("no Python with the clients: run make deps: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience) // so that what hangs ends with its output, and the logs of the processes
	defer cancel()
	command := exec.CommandContext(ctx, interpreter, args...)
	command.Env = append(os.Environ(), env...)
	command.Dir = root(t)
	out, err := command.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("python %v: %v", args, errors.Join(err, ctx.Err()))
	}
	return string(out)
}

func TestRealClients(t *testing.T) {
	s := start(t, examples(t))
	python(t, []string{"HTTP_URL=" + s.HTTP, "GRPC_URL=" + s.GRPC}, "test/e2e/clients/test_protocols.py", "-v")
}

// TestDeadlinesEndCallsAsSuch has the deadlines of clients pass in queues and in
// executions. The models have not run before: no request is refused for what
// executions take.
func TestDeadlinesEndCallsAsSuch(t *testing.T) {
	files := map[string]string{}
	for _, name := range []string{"unary", "stream", "http"} {
		files[name+"/config.pbtxt"] = strings.Replace(echo(30_000_000), "count: 1", "count: 8", 1)
		files[name+"/1/.keep"] = ""
	}
	s := start(t, repository(t, files))
	python(t, []string{"HTTP_URL=" + s.HTTP, "GRPC_URL=" + s.GRPC}, "test/e2e/clients/test_deadlines.py", "-v")
}

func TestImagesAreClassified(t *testing.T) {
	s := start(t, examples(t))
	images, err := filepath.Glob(filepath.Join(root(t), "examples", "images", "*.png"))
	if err != nil || len(images) == 0 {
		t.Fatalf("no images: %v", err)
	}
	for protocol, url := range map[string]string{"http": s.HTTP, "grpc": s.GRPC, "aio": s.GRPC} {
		t.Run(protocol, func(t *testing.T) {
			out := python(t, nil, append([]string{"examples/clients/classify.py", "--protocol", protocol, "--url", url}, images...)...)
			for _, image := range images {
				name := filepath.Base(image) // starts with its digit
				row := regexp.MustCompile(regexp.QuoteMeta(name) + `\s+(\d)\s`).FindStringSubmatch(out)
				if row == nil || row[1] != name[:1] {
					t.Errorf("%s is read as %v", name, row)
				}
			}
		})
	}
}

// TestADeadlineShorterThanTheExecutionIsExceeded has the clients' deadlines be too short for
// a model that is idle.
func TestADeadlineShorterThanTheExecutionIsExceeded(t *testing.T) {
	s := start(t, repository(t, map[string]string{"slow/config.pbtxt": echo(300_000), "slow/1/.keep": ""}))
	python(t, []string{"HTTP_URL=" + s.HTTP, "GRPC_URL=" + s.GRPC}, "test/e2e/clients/test_short_deadline.py", "-v")
}

// TestClientLibrary has the real clients send BF16, use plugins and run in greenlets.
func TestClientLibrary(t *testing.T) {
	files := map[string]string{}
	for name, datatype := range map[string]string{"numbers": "TYPE_INT32", "bf16": "TYPE_BF16"} {
		files[name+"/config.pbtxt"] = `backend: "echo" max_batch_size: 8
input { name: "INPUT0" data_type: ` + datatype + ` dims: [ -1 ] } output { name: "OUTPUT0" data_type: ` + datatype + ` dims: [ -1 ] }`
		files[name+"/1/.keep"] = ""
	}
	s := start(t, said(t, files), "--http-header-forward-pattern=^x-|authorization", "--grpc-header-forward-pattern=^x-|authorization",
		"--http-restricted-api=model-repository:authorization=Basic dXNlcjpwYXNz", "--grpc-restricted-protocol=model-repository:key=secret")
	python(t, []string{"HTTP_URL=" + s.HTTP, "GRPC_URL=" + s.GRPC}, "test/e2e/clients/test_client_library.py", "-v")
	s.wantMetrics(inFlight(0))
}
