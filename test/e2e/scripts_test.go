package e2e

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"testing"

	free "github.com/nereid-serving/nereid/libs/testkit/port"
)

// TestScriptsForTritonWork runs what shell scripts do with tritonserver.
func TestScriptsForTritonWork(t *testing.T) {
	inOneProcess(t)
	for _, tool := range []string{"bash", "curl", "grep", "awk"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the scripts need %s: %v", tool, err)
		}
	}
	healthy := repository(t, map[string]string{"slow/config.pbtxt": echo(1_000_000), "slow/1/.keep": ""})
	broken := repository(t, map[string]string{"broken/config.pbtxt": `backend: "onnxruntime"`, "broken/1/model.onnx": "none"})
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	command := exec.CommandContext(ctx, "bash", "testdata/scripts.sh")
	command.Env = append(os.Environ(), "SERVER="+program(t, "nereid")+" serve", "REPOSITORY="+healthy, "BROKEN="+broken)
	first := free.Free(t, 3)
	for i, port := range []string{"HTTP", "GRPC", "METRICS"} {
		command.Env = append(command.Env, port+"="+strconv.Itoa(first+i))
	}
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}
