package compose

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

// loss is the death of one container, and what callers may see of it.
type loss struct {
	service string
	// visible are the ends beside a response that requests may have.
	visible []string
	// changes says that models can be changed while the container is away: a
	// replica takes over, or the service has nothing to do with it.
	changes bool
}

// losses are the rows of the table in docs/guides/compose.md, "What happens
// when something dies".
func losses() []loss {
	unavailable := []string{"503 instance_crashed", "503 no_worker", "503 model_not_ready"}
	return []loss{
		{service: "gateway", visible: []string{broken}, changes: true},
		{service: "scheduler", visible: unavailable, changes: true},
		{service: "worker", visible: unavailable, changes: true},
		{service: "registry", changes: true},
		{service: "nats"},
		{service: "s3"},
	}
}

// survives kills one container of a service under load, goes on without it,
// and brings it back.
func (c *cluster) survives(t *testing.T, lost loss) {
	l := c.load(t, 8)
	c.more(t, l, 100)
	id, _, _ := strings.Cut(c.compose(t, "ps", "--quiet", lost.service), "\n")
	run(t, c.environment, c.root, "docker", "kill", id)
	c.more(t, l, 500)
	before := "while-" + lost.service
	c.add(t, before)
	if lost.changes {
		c.upload(t)
		c.served(t, before)
	}
	run(t, c.environment, c.root, "docker", "start", id)
	after := "after-" + lost.service
	c.add(t, after)
	c.await(t, "healthy", func() error { return c.healthy(lost.service) })
	c.upload(t)
	c.served(t, before)
	c.served(t, after)
	c.more(t, l, 500)
	counts := l.end(t)
	if bad := unexpected(counts, append(lost.visible, answered)...); len(bad) > 0 {
		t.Errorf("callers see %v", bad)
	}
}

// more waits until so many more requests have been answered well.
func (c *cluster) more(t *testing.T, l *load, n int) {
	t.Helper()
	goal := l.so(answered) + n
	c.await(t, fmt.Sprintf("%d more responses", n), func() error {
		if have := l.so(answered); have < goal {
			l.mu.Lock()
			defer l.mu.Unlock()
			return fmt.Errorf("%d are missing; so far %v", goal-have, maps.Clone(l.counts))
		}
		return nil
	})
}
