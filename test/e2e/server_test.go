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
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds waits for the process; no test measures it.
const patience = 2 * time.Minute

// server is a running nereid serve.
type server struct {
	t       testing.TB
	command *exec.Cmd
	// HTTP, GRPC and Metrics are host:port, once it listens.
	HTTP, GRPC, Metrics string

	mu     sync.Mutex
	log    []string     // guarded by mu
	stdout bytes.Buffer // whole, and to be read, after exited
	exited chan struct{}
	status error // valid after exited
}

// line is one entry of the process's log.
type line struct {
	Msg           string `json:"msg"`
	HTTP, GRPC    string
	Address       string `json:"address"`
	Level, Reason string
}

// start starts the program on a repository and any free ports, and waits
// until it has started.
func start(t testing.TB, repository string, flags ...string) *server {
	t.Helper()
	s := launch(t, repository, flags...)
	if !s.wait("started") {
		t.Fatalf("nereid did not start:\n%s", s.text())
	}
	return s
}

// launch starts the program and waits for nothing.
func launch(t testing.TB, repository string, flags ...string) *server {
	t.Helper()
	args := append([]string{
		"serve", "--model-repository", repository, "--log-format=json",
		"--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1",
		"--http-port=0", "--grpc-port=0", "--metrics-port=0",
	}, flags...)
	s := &server{t: t, command: exec.Command(program(t), args...), exited: make(chan struct{})}
	s.command.Stdout = &s.stdout
	log, err := s.command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.command.Start(); err != nil {
		t.Fatal(err)
	}
	go s.follow(log)
	t.Cleanup(s.kill)
	return s
}

// program is the built program.
func program(t testing.TB) string {
	t.Helper()
	path := os.Getenv("NEREID_BIN")
	if path == "" {
		path = filepath.Join(root(t), "bin", "nereid")
	}
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

// examples is the repository of example models.
func examples(t testing.TB) string { return filepath.Join(root(t), "examples", "models") }

// follow keeps the log and the addresses in it until the process ends.
func (s *server) follow(log io.Reader) {
	scanner := bufio.NewScanner(log)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		s.note(scanner.Text())
	}
	s.status = s.command.Wait()
	close(s.exited)
}

func (s *server) note(text string) {
	var l line
	_ = json.Unmarshal([]byte(text), &l) // what is no JSON has no fields
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, text)
	switch l.Msg {
	case "listening":
		s.HTTP, s.GRPC = l.HTTP, l.GRPC
	case "serving metrics":
		s.Metrics = l.Address
	}
}

// wait waits for a log message; false if the process ends or takes too long.
func (s *server) wait(message string) bool {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for !s.logged(message) {
		select {
		case <-poll.C:
		case <-s.exited:
			return s.logged(message)
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (s *server) logged(message string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, text := range s.log {
		if strings.Contains(text, fmt.Sprintf("%q:%q", "msg", message)) {
			return true
		}
	}
	return false
}

// text is the whole log so far.
func (s *server) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.log, "\n")
}

func (s *server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.command.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// exit waits for the end of the process and returns its exit status.
func (s *server) exit() int {
	s.t.Helper()
	select {
	case <-s.exited:
	case <-time.After(patience):
		s.t.Fatalf("the process does not end:\n%s", s.text())
	}
	return s.command.ProcessState.ExitCode()
}

func (s *server) kill() {
	_ = s.command.Process.Kill() // it may have ended
	<-s.exited
}
