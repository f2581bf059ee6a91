package cluster

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/test/audit"
	"github.com/nereid-serving/nereid/test/load"
)

// TestRollingRestart starts every process anew, one after another and the
// leaders twice, under load. No caller notices. A gateway gets no more requests
// before it is stopped: one that comes over HTTP while it closes its listener
// or an idle connection is lost, and no client may send it again.
func TestRollingRestart(t *testing.T) {
	if os.Getenv("NEREID_KILLS") == "" {
		t.Skip("NEREID_KILLS is not set: run make e2e")
	}
	c := start(t, nil)
	path := filepath.Join(c.dir, "requests")
	log, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := load.Start(ctx, load.Config{Targets: c.targets, Traffic: traffic(), Timeout: patience, Prefix: "rolling", Log: log})
	for _, name := range strings.Fields("registry-1 registry-2 registry-1 scheduler-1 scheduler-2 scheduler-1 worker-1 worker-2 worker-3 gateway-1 gateway-2") {
		c.answered(l, rate/2)
		p, back := c.processes[name], l.Without(name)
		p.stop()
		p.start()
		p.ready()
		back()
		t.Logf("%s runs again", name)
	}
	c.answered(l, rate/2)
	cancel()
	lines := l.Wait()
	if report := c.audit(path, audit.Causes{}); len(report.Violations) > 0 || report.OK != len(lines) {
		t.Errorf("of %d requests:\n%s", len(lines), report)
	}
	for _, line := range lines {
		if line.Responses[0].Outcome != load.OK {
			t.Errorf("%+v", line)
		}
	}
}
