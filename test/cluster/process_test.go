package cluster

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// patience bounds what a test waits for; no test measures it.
const patience = 2 * time.Minute

// process is one program that is started, killed and started again under the
// same name.
type process struct {
	t    *testing.T
	name string
	// arguments are those of one incarnation, counted from 1.
	arguments func(incarnation int) []string
	program   string
	dir       string
	// health is where it says whether it is ready; empty if it does not.
	health string

	incarnation int
	command     *exec.Cmd
	exited      chan struct{} // of the present incarnation
}

func (p *process) start() {
	p.t.Helper()
	p.incarnation++
	log, err := os.OpenFile(filepath.Join(p.dir, p.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close() // the process has its own
	fmt.Fprintf(log, "--- incarnation %d\n", p.incarnation)
	command := exec.Command(p.program, p.arguments(p.incarnation)...)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		p.t.Fatal(err)
	}
	exited := make(chan struct{})
	p.command, p.exited = command, exited
	go func() { // ends with the process
		_ = command.Wait()
		close(exited)
	}()
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.command.Process.Signal(s); err != nil {
		p.t.Errorf("%v to %s: %v", s, p.name, err)
	}
}

// kill ends the process at once.
func (p *process) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	<-p.exited
}

// stop lets the process finish what it has.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(patience):
		p.t.Errorf("waited in vain for %s to stop", p.name)
		p.kill()
	}
	if status := p.command.ProcessState.ExitCode(); status != 0 {
		p.t.Errorf("%s stopped with exit status %d", p.name, status)
	}
}

// ready waits until the process says that it is.
func (p *process) ready() {
	p.t.Helper()
	if p.health == "" {
		return
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for !says(ctx, p.health) {
		select {
		case <-poll.C:
		case <-p.exited:
			p.t.Fatalf("waited for %s to be ready, and it ended", p.name)
		case <-ctx.Done():
			p.t.Fatalf("waited in vain for %s to be ready", p.name)
		}
	}
}

// says reports whether a health endpoint answers that all is well.
func says(ctx context.Context, address string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/v2/health/ready", nil)
	if err != nil {
		return false
	}
	c := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := c.Do(request)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// end kills the process if it runs, and shows what it came to if the test has
// failed.
func (p *process) end() {
	if p.command == nil {
		return
	}
	state := "killed at the test's end"
	select {
	case <-p.exited:
		state = p.command.ProcessState.String()
	default:
		_ = p.command.Process.Kill()
		<-p.exited
	}
	if p.t.Failed() {
		p.t.Logf("%s in incarnation %d, %s, logged last:\n%s", p.name, p.incarnation, state, p.tail())
	}
}

// tail is the end of what the process has written.
func (p *process) tail() string {
	text, err := os.ReadFile(filepath.Join(p.dir, p.name+".log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-3000):])
}
