package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/nereid-serving/nereid/test/ports"
)

// TestClusterGuide runs the commands of docs/guides/cluster.md: with TLS and
// credentials, two replicas of each service and a pool beside the default one.
// Only what the machine shares with others is replaced: the directory, the ports,
// and the object store, in whose place the directory of example models stands.
func TestClusterGuide(t *testing.T) {
	if !clustered() {
		t.Skip("needs memory for eleven processes: run make e2e-cluster")
	}
	text, err := os.ReadFile(filepath.Join(root(t), "docs", "guides", "cluster.md"))
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, found := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, found[1])
	}
	const ready = "until nereid status --url localhost:8001 && nereid status --url localhost:8101; do sleep 0.1; done >/dev/null 2>&1"
	const ask = `for port in 8000 8100; do curl -sf localhost:$port/v2/models/simple/infer -d '{"inputs": [
		{"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]},
		{"name": "INPUT1", "datatype": "INT32", "shape": [1, 16], "data": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}]}' | grep '\[2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17\]'; done`
	const drain = `set -- $(jobs -p); nats=$1; shift; kill -TERM "$@"; for p in "$@"; do wait "$p" || { jobs -l; exit 1; }; done; kill "$nats"; wait "$nats"`
	last := len(blocks) - 1 // the commands that look at what runs; the first builds it
	script := strings.Join(append([]string{"set -euo pipefail"}, append(blocks[1:last], ready, ask, blocks[last], drain)...), "\n")

	dir := socketDir(t)
	var free ports.Picker
	replaced := map[string]string{}
	script = regexp.MustCompile(`\b(4222|8[01]\d\d)\b`).ReplaceAllStringFunc(script, func(port string) string {
		if replaced[port] == "" {
			replaced[port] = strconv.Itoa(free.Free(t))
		}
		return replaced[port]
	})
	script = strings.NewReplacer("s3://127.0.0.1:7070/models", examples(t), "/tmp/cluster", dir).Replace(script)

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	nats := exec.CommandContext(ctx, "go", "build", "-o", dir, "github.com/nats-io/nats-server/v2")
	nats.Dir = filepath.Join(root(t), "libs")
	if out, err := nats.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	bash := exec.CommandContext(ctx, "bash", "-c", script)
	bash.Env = append(os.Environ(), "PATH="+filepath.Dir(program(t, "nereid"))+":"+dir+":"+os.Getenv("PATH"),
		"NEREID_HTTP_PORT="+replaced["8000"], "NEREID_GRPC_PORT="+replaced["8001"], "NEREID_PYTHON="+interpreter(t))
	bash.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	bash.Cancel = func() error { return syscall.Kill(-bash.Process.Pid, syscall.SIGKILL) }
	if out, err := bash.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s\n%s", err, out, script)
	}
}
