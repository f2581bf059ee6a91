package node

import (
	"bytes"
	"io"
	"strings"
	"sync"
)

// tail passes on what is written, line by line, and keeps the last lines: they
// show why a process ended. It is safe for concurrent use.
type tail struct {
	to io.Writer

	mu    sync.Mutex
	begun []byte   // of a line that has not ended; guarded by mu
	lines []string // guarded by mu
	// crash is the line with which Go reports a crash, which the stacks of
	// goroutines follow; empty if there is none. It is guarded by mu.
	crash string
}

const (
	keptLines = 20
	// longestLine is where a line that does not end is broken.
	longestLine = 16 << 10
)

// Write takes any bytes. It never fails: what cannot be passed on is kept.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begun = append(t.begun, p...)
	for {
		end := bytes.IndexByte(t.begun, '\n')
		switch {
		case end >= 0:
			t.line(t.begun[:end])
			t.begun = t.begun[end+1:]
		case len(t.begun) > longestLine:
			t.line(t.begun)
			t.begun = nil
		default:
			return len(p), nil
		}
	}
}

// line takes one without its end. t.mu is held.
func (t *tail) line(text []byte) {
	_, _ = t.to.Write(append(bytes.Clone(text), '\n'))
	if len(t.lines) == keptLines {
		t.lines = t.lines[1:]
	}
	t.lines = append(t.lines, string(text))
	for _, sign := range []string{"panic: ", "fatal error: "} {
		if t.crash == "" && strings.HasPrefix(string(text), sign) {
			t.crash = string(text)
		}
	}
}

// last returns the last lines, of a crash its first one, and forgets them.
func (t *tail) last() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.begun) > 0 {
		t.line(t.begun)
		t.begun = nil
	}
	lines := t.lines
	if t.crash != "" {
		lines = []string{t.crash}
	}
	t.lines, t.crash = nil, ""
	return lines
}

// cause is the line that explains most: the last one that is not blank.
func cause(lines []string) string {
	for i := range lines {
		if text := strings.TrimSpace(lines[len(lines)-1-i]); text != "" {
			return text
		}
	}
	return "it wrote nothing"
}
