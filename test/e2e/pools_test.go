package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A model's pool has workers and a scheduler of its own; clients see one
// server.
func TestPoolsHaveWorkersAndSchedulersOfTheirOwn(t *testing.T) {
	repository := t.TempDir()
	for _, model := range []string{"large", "small"} {
		if err := os.MkdirAll(filepath.Join(repository, model, "1"), 0o755); err != nil {
			t.Fatal(err)
		}
		config := `backend: "echo" input { name: "x" data_type: TYPE_INT8 dims: [ 1 ] } output { name: "y" data_type: TYPE_INT8 dims: [ 1 ] }`
		if err := os.WriteFile(filepath.Join(repository, model, "config.pbtxt"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := startCluster(t, repository, "--pool-models=batch=large")
	infer := func(model string) (int, string) {
		return s.do(http.MethodPost, s.HTTP+"/v2/models/"+model+"/infer", `{"inputs":[{"name":"x","datatype":"INT8","shape":[1],"data":[7]}]}`)
	}
	if status, text := infer("small"); status != http.StatusOK {
		t.Fatalf("the model of the default pool answers %d %s", status, text)
	}
	if _, index := s.do(http.MethodPost, s.HTTP+"/v2/repository/index", ""); !strings.Contains(index, "pool batch, which has no worker") {
		t.Errorf("the index does not say what the other model lacks: %s", index)
	}
	sockets := socketDir(t)
	for _, service := range []string{"scheduler", "worker"} {
		s.all = append(s.all, run(t, service, "--log-format=json", "--nats-url="+s.all[0].said().NATS, "--metrics-address=127.0.0.1", "--metrics-port=0",
			"--id=batch-"+service, "--pool=batch", "--listen=unix:"+filepath.Join(sockets, service)))
	}
	s.eventually("the other pool to serve", func() bool {
		status, _ := infer("large")
		return status == http.StatusOK
	})
	s.until("the other pool's scheduler to count that", s.HTTP+"/v2/models/large/stats", func(stats string) bool {
		return strings.Contains(stats, `"inference_count":1,`)
	})
	s.stop()
}
