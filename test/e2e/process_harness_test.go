package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds waits for processes; no test measures it.
const patience = 2 * time.Minute

// process is a running program that logs as JSON.
type process struct {
	t       testing.TB
	name    string
	command *exec.Cmd

	mu     sync.Mutex
	log    []string     // guarded by mu
	told   line         // what the log has said, the last of each; guarded by mu
	stdout bytes.Buffer // whole, and to be read, after exited
	exited chan struct{}
	status error // valid after exited
}

// line is one entry of a process's log.
type line struct {
	Msg        string `json:"msg"`
	HTTP, GRPC string
	// NATS is where nereid bus listens, Metrics where metrics are.
	NATS    string `json:"nats"`
	Metrics string `json:"address"`
}

// run starts a program and waits for nothing. It is killed at the test's end,
// and the last of its log is shown if the test has failed.
func run(t testing.TB, name string, args ...string) *process {
	t.Helper()
	command := exec.Command(program(t, name), args...)
	if name == "nereid" {
		name += " " + args[0]
	}
	command.Env = append(os.Environ(), "NEREID_PYTHON="+interpreter(t), "PYTHONDONTWRITEBYTECODE=") // as users have it
	return follow(t, name, command)
}

// follow starts a command as run does.
func follow(t testing.TB, name string, command *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, name: name, command: command, exited: make(chan struct{})}
	p.command.Stdout = &p.stdout
	log, err := p.command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	go p.read(log)
	t.Cleanup(p.end)
	return p
}

// end kills the process, and shows what it came to if the test has failed.
func (p *process) end() {
	state := "killed at the test's end"
	if p.ended() {
		state = p.command.ProcessState.String()
	}
	p.kill()
	if p.t.Failed() {
		p.t.Logf("%s, %s, logged last:\n%s", p.name, state, p.tail())
	}
}

func (p *process) ended() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// program is a built program: nereid is where NEREID_BIN says, and the others
// are beside it.
func program(t testing.TB, name string) string {
	t.Helper()
	path := os.Getenv("NEREID_BIN")
	if path == "" {
		path = filepath.Join(root(t), "bin", "nereid")
	}
	path = filepath.Join(filepath.Dir(path), name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("no program to test: run make e2e: %v", err)
	}
	return path
}

// root is the project's directory.
func root(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// read keeps the log and the addresses in it until the process ends.
func (p *process) read(log io.Reader) {
	scanner := bufio.NewScanner(log)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		p.note(scanner.Text())
	}
	p.status = p.command.Wait()
	close(p.exited)
}

func (p *process) note(text string) {
	var l line
	_ = json.Unmarshal([]byte(text), &l) // what is no JSON has no fields
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log = append(p.log, text)
	switch l.Msg {
	case "listening":
		p.told.HTTP, p.told.GRPC, p.told.NATS = l.HTTP, l.GRPC, l.NATS
	}
	if strings.HasPrefix(l.Msg, "Started Metrics Service at ") {
		p.told.Metrics = l.Metrics
	}
}

// said is what the log has said so far.
func (p *process) said() line {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.told
}

// expect waits for a log message, without which the test fails.
func (p *process) expect(message string) {
	p.t.Helper()
	await(p.t, fmt.Sprintf("%s to log %q", p.name, message), []*process{p}, func() bool { return p.logged(message) })
}

// await waits until something holds that processes bring about, and fails the
// test when one of them ends before or it takes too long.
func await(t testing.TB, what string, from []*process, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for {
		ended := slices.IndexFunc(from, (*process).ended)
		switch {
		case holds():
			return
		case ended >= 0:
			t.Fatalf("waited for %s, and %s ended: %v", what, from[ended].name, from[ended].command.ProcessState)
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func (p *process) logged(message string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, text := range p.log {
		if strings.Contains(text, fmt.Sprintf("%q:%q", "msg", message)) {
			return true
		}
	}
	return false
}

// text is the whole log so far.
func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.log, "\n")
}

// tail is the end of the log.
func (p *process) tail() string {
	const lines = 40
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.log[max(0, len(p.log)-lines):], "\n")
}

func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.command.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// exit waits for the end of the process and returns its exit status.
func (p *process) exit() int {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(patience):
		p.t.Fatalf("waited in vain for %s to end", p.name)
	}
	return p.command.ProcessState.ExitCode()
}

func (p *process) kill() {
	_ = p.command.Process.Kill() // it may have ended
	<-p.exited
}
