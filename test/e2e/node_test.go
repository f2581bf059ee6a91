package e2e

import (
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/nereid-serving/nereid/test/ports"
)

// TestNodeKeepsAWorkerRunning serves through a worker under nereid node, kills
// it, serves through the next one, and stops the node.
func TestNodeKeepsAWorkerRunning(t *testing.T) {
	bus := run(t, "nereid", "bus", "--listen=127.0.0.1:0", "--log-format=json")
	bus.expect("listening")
	nats, sockets := "--nats-url="+bus.said().NATS, socketDir(t)
	var free ports.Picker
	models := repository(t, map[string]string{"m/config.pbtxt": echo(0), "m/1/.keep": ""})
	common := []string{nats, "--log-format=json", "--metrics-address=127.0.0.1", "--metrics-port=0"}
	registry := run(t, "registry", append(common, "--model-repository="+models, "--listen=unix:"+filepath.Join(sockets, "registry"))...)
	scheduler := run(t, "scheduler", append(common, "--listen=unix:"+filepath.Join(sockets, "scheduler"))...)
	node := run(t, "nereid", "node", "--node-id=n", "--gpu-workers=none", "--worker-address=127.0.0.1", "--log-format=json",
		"--metrics-address=127.0.0.1", "--metrics-port=0", "--worker-metrics-port="+strconv.Itoa(free.Free(t)), "--", nats, "--log-format=json")
	gateway := run(t, "gateway", append([]string{nats, "--log-format=json"}, anyPorts()...)...)
	s := &server{process: gateway, models: node, all: []*process{bus, registry, scheduler, node, gateway}}
	gateway.expect("started") // the node says it as well
	s.HTTP = s.said().HTTP
	s.infer(t, "m", http.StatusOK)

	node.expect("worker started")
	pid, err := strconv.Atoi(regexp.MustCompile(`"worker started".*"pid":(\d+)`).FindStringSubmatch(node.text())[1])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.eventually("another worker", func() bool { return strings.Count(node.text(), `"worker started"`) >= 2 })
	s.eventually("the model on it", func() bool {
		status, _ := s.do(http.MethodPost, s.HTTP+"/v2/models/m/infer", one)
		return status == http.StatusOK
	})

	// The logs follow the cluster's settings.
	if status, text := s.do(http.MethodPost, s.HTTP+"/v2/logging", `{"log_format": "ISO8601", "log_verbose_level": 1}`); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	all := regexp.MustCompile(`"worker started".*"pid":(\d+)`).FindAllStringSubmatch(node.text(), -1)
	if pid, err = strconv.Atoi(all[len(all)-1][1]); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	other := regexp.MustCompile(`(?m)^[^{\n].*"worker started"`)
	s.eventually("the node logs in another format", func() bool { return other.MatchString(node.text()) })
	node.signal(syscall.SIGTERM)
	if status := node.exit(); status != 0 {
		t.Errorf("the node's exit status is %d", status)
	}
	bus.signal(syscall.SIGTERM)
	if status := bus.exit(); status != 0 || !strings.Contains(bus.text(), "embedded nats notice") {
		t.Errorf("the exit status of the bus is %d, and it logs no notice", status)
	}
}
