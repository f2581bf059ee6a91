package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// server is a running deployment: nereid serve, or the services as processes
// of their own where NEREID_DEPLOYMENT is cluster.
type server struct {
	// process is what clients talk to: nereid serve or the gateway.
	*process
	// models is the process that runs models: nereid serve or the worker.
	models *process
	// all are the deployment's, in the order of their start.
	all []*process
	// HTTP and GRPC are host:port or a socket's path.
	HTTP, GRPC string
}

// clustered reports whether the tests run over services as processes.
func clustered() bool { return os.Getenv("NEREID_DEPLOYMENT") == "cluster" }

// inOneProcess skips a test of what nereid serve alone does.
func inOneProcess(t testing.TB) {
	t.Helper()
	if clustered() {
		t.Skip("only nereid serve does that")
	}
}

// start starts the deployment on a repository and any free ports, and waits
// until it has started. Flags are those of nereid serve.
func start(t testing.TB, repository string, flags ...string) *server {
	t.Helper()
	if clustered() {
		return startCluster(t, repository, flags...)
	}
	s := launch(t, repository, flags...)
	s.expect("started")
	s.HTTP, s.GRPC = s.said().HTTP, s.said().GRPC
	return s
}

// launch starts nereid serve and waits for nothing.
func launch(t testing.TB, repository string, flags ...string) *server {
	t.Helper()
	p := run(t, "nereid", slices.Concat([]string{"serve", "--model-repository", repository, "--log-format=json"}, anyPorts(), flags)...)
	return &server{process: p, models: p, all: []*process{p}}
}

// anyPorts are flags for clients and metrics on free ports.
func anyPorts() []string {
	return []string{
		"--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1",
		"--http-port=0", "--grpc-port=0", "--metrics-port=0",
	}
}

// metrics are those of all processes.
func (s *server) metrics() string {
	s.t.Helper()
	var all strings.Builder
	for _, p := range s.all {
		address := p.said().Metrics
		if address == "" {
			continue
		}
		status, text := s.do(http.MethodGet, address+"/metrics", "")
		if status != http.StatusOK {
			s.t.Fatalf("metrics of %s: %d %s", p.name, status, text)
		}
		all.WriteString(text)
	}
	return all.String()
}

// text is the log of all processes.
func (s *server) text() string {
	var all []string
	for _, p := range s.all {
		all = append(all, p.text())
	}
	return strings.Join(all, "\n")
}

// expect waits for a log message of any process, without which the test fails.
func (s *server) expect(message string) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("the log message %q", message), func() bool {
		return slices.ContainsFunc(s.all, func(p *process) bool { return p.logged(message) })
	})
}

// eventually waits for what the services agree on by themselves.
func (s *server) eventually(what string, holds func() bool) {
	s.t.Helper()
	await(s.t, what, s.all, holds)
}

// wantMetrics waits until the metrics of all processes together have all lines:
// what is counted when it is over may be counted after its answer.
func (s *server) wantMetrics(lines ...string) {
	s.t.Helper()
	for _, line := range lines {
		s.wantMetric(line)
	}
}

func (s *server) wantMetric(line string) {
	s.t.Helper()
	family := line[:strings.IndexAny(line, "{ ")]
	var found string
	defer func() {
		if s.t.Failed() {
			s.t.Logf("all of %s:\n%s", family, found)
		}
	}()
	s.eventually("the metric "+line, func() bool {
		found = ""
		for there := range strings.Lines(s.metrics()) {
			if strings.HasPrefix(there, family) {
				found += there
			}
		}
		return strings.Contains(found, line+"\n")
	})
}

// stop ends the deployment, the last process first; from then on the logs are
// whole.
func (s *server) stop() {
	s.t.Helper()
	for _, p := range slices.Backward(s.all) {
		p.signal(syscall.SIGTERM)
		if status := p.exit(); status != 0 {
			s.t.Errorf("%s ended with exit status %d", p.name, status)
		}
	}
}

// examples is the repository of example models.
func examples(t testing.TB) string { return filepath.Join(root(t), "examples", "models") }
