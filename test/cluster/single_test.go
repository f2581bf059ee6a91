package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/test/audit"
	"github.com/nereid-serving/nereid/test/load"
)

// TestOneProcessDiesUnderLoad kills a whole server in the middle of its work and
// starts it again: what it had is lost and nothing is executed twice.
func TestOneProcessDiesUnderLoad(t *testing.T) {
	bin := programs(t)
	c := &cluster{t: t, dir: t.TempDir()}
	for _, name := range served() {
		c.repository(name)
	}
	http, grpc, metrics := c.ports.Free(t), c.ports.Free(t), c.ports.Free(t)
	c.targets = []load.Target{{Name: "server", HTTP: fmt.Sprintf("127.0.0.1:%d", http), GRPC: fmt.Sprintf("127.0.0.1:%d", grpc)}}
	p := &process{
		t: t, name: "server", program: filepath.Join(bin, "nereid"), dir: c.dir, health: c.targets[0].HTTP,
		arguments: func(incarnation int) []string {
			return []string{
				"serve", "--model-repository", filepath.Join(c.dir, "models"), "--data", filepath.Join(c.dir, "state"), "--http-address", "127.0.0.1", "--grpc-address", "127.0.0.1",
				"--http-port", fmt.Sprint(http), "--grpc-port", fmt.Sprint(grpc), "--metrics-port", fmt.Sprint(metrics), "--metrics-address", "127.0.0.1",
				"--execution-log", filepath.Join(c.dir, executions("server", incarnation)),
			}
		},
	}
	p.start()
	t.Cleanup(p.end)
	p.ready()
	path := filepath.Join(c.dir, "requests")
	log, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := load.Start(ctx, load.Config{Targets: c.targets, Traffic: traffic(), Timeout: patience, Prefix: "single", Log: log})
	c.answered(l, 50)
	p.kill()
	p.start()
	p.ready()
	c.answered(l, 50)
	cancel()
	lines := l.Wait()
	report := c.audit(path, audit.Causes{})
	if len(report.Violations) > 0 || report.OK < 100 || report.Requests != len(lines) {
		t.Errorf("of %d requests:\n%s", len(lines), report)
	}
	for _, line := range lines {
		if o := line.Responses[0].Outcome; o != load.OK && o != load.Lost {
			t.Errorf("%+v", line)
		}
	}
}

// last are the last few lines of a load, for people.
func last(lines []load.Line) string {
	var b strings.Builder
	for _, line := range lines[max(0, len(lines)-10):] {
		fmt.Fprintf(&b, "%+v\n", line)
	}
	return b.String()
}

// answered waits until n more requests have got their results.
func (c *cluster) answered(l *load.Load, n int) {
	c.t.Helper()
	count := func() (good int) {
		for _, line := range l.Lines() {
			if line.Responses[0].Outcome == load.OK {
				good++
			}
		}
		return good
	}
	enough := count() + n
	for give := time.Now().Add(patience); count() < enough; c.pass(20 * time.Millisecond) {
		if time.Now().After(give) {
			c.t.Fatalf("waited in vain for %d responses, of which %d came; the last requests:\n%s", enough, count(), last(l.Lines()))
		}
	}
}
