package e2e

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestStatus asks a whole server how it is, over the port that clients know.
func TestStatus(t *testing.T) {
	s := start(t, repository(t, map[string]string{"m/config.pbtxt": echo(0), "m/1/.keep": ""}), "--grpc-restricted-protocol", "model-repository:admin=secret")
	header := []string{"status", "--url", s.GRPC, "--header", "triton-grpc-protocol-admin: secret"}
	var stdout, stderr string
	var status int
	s.eventually("all to be well", func() bool { // a gateway that has started is about to say that it is ready
		stdout, stderr, status = nereid(t, header...)
		return status == 0
	})
	for _, want := range []string{"registry since", "pool.default since", "1 of 1 ready", "All is well."} {
		if !strings.Contains(stdout, want) || status != 0 {
			t.Errorf("exit status %d and no %q in\n%s%s", status, want, stdout, stderr)
		}
	}
	stdout, stderr, status = nereid(t, append(header, "--output", "json")...)
	var cluster struct {
		Problems []string
		Models   []struct{ Name string }
	}
	if err := json.Unmarshal([]byte(stdout), &cluster); err != nil || status != 0 || len(cluster.Problems) > 0 || len(cluster.Models) != 1 {
		t.Errorf("exit status %d, %v: %s%s", status, err, stdout, stderr)
	}
	if _, stderr, status = nereid(t, "status", "--url", s.GRPC); status != 1 || !strings.Contains(stderr, "triton-grpc-protocol-admin") {
		t.Errorf("without the header: exit status %d, %s", status, stderr)
	}
}

func TestStatusOfWhatIsNotWell(t *testing.T) {
	s := start(t, repository(t, map[string]string{"bad/config.pbtxt": "max_batchsize: 1", "bad/1/.keep": ""}), "--exit-on-error=false")
	stdout, stderr, status := nereid(t, "status", "--url", s.GRPC)
	if status != 1 || !strings.Contains(stdout, "model bad cannot be served") || !strings.Contains(stderr, "not all is well") {
		t.Errorf("exit status %d:\n%s%s", status, stdout, stderr)
	}
	if _, stderr, status = nereid(t, "status", "--url", s.HTTP); status != 1 || !strings.Contains(stderr, "gRPC") {
		t.Errorf("of a port of HTTP: exit status %d, %s", status, stderr)
	}
}
