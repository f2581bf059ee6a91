package stub

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/nereid-serving/nereid/python"
)

// group starts a process that leads a group and lives until it is killed, and returns
// its number and what takes its end.
func group(t *testing.T) (int, *exec.Cmd) {
	t.Helper()
	c := exec.Command("sleep", "1000")
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return c.Process.Pid, c
}

func newGuard(t *testing.T) (*guard, *Spec) {
	t.Helper()
	interpreter := os.Getenv("NEREID_PYTHON")
	if interpreter == "" {
		t.Skip("NEREID_PYTHON names no interpreter")
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, python.Files()); err != nil {
		t.Fatal(err)
	}
	g := &guard{file: filepath.Join(dir, "nereid", "guard.py"), groups: make(map[int]bool)}
	t.Cleanup(g.close)
	return g, &Spec{Interpreter: interpreter}
}

func signalOf(t *testing.T, c *exec.Cmd) syscall.Signal {
	t.Helper()
	var exit *exec.ExitError
	if err := c.Wait(); !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return exit.Sys().(syscall.WaitStatus).Signal()
}

// The guard kills the groups that are left when the worker's end of the pipe is closed,
// as it is by the worker's death, and no others.
func TestTheGuardKillsWhatIsLeft(t *testing.T) {
	g, spec := newGuard(t)
	removed, first := group(t)
	left, second := group(t)
	for _, id := range []int{removed, left} {
		if err := g.add(id, spec, (*exec.Cmd).Start); err != nil {
			t.Fatal(err)
		}
	}
	g.remove(removed)
	g.close()
	if got := signalOf(t, second); got != syscall.SIGKILL {
		t.Errorf("what was left ended by %v", got)
	}
	if err := first.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := signalOf(t, first); got != syscall.SIGTERM {
		t.Errorf("what had been removed ended by %v", got)
	}
}

// A guard that has ended is replaced with the next stub, and the new one knows all groups.
func TestTheGuardIsStartedAgain(t *testing.T) {
	g, spec := newGuard(t)
	var process *os.Process
	start := func(c *exec.Cmd) error {
		err := c.Start()
		process = c.Process
		return err
	}
	id, c := group(t)
	if err := g.add(id, spec, start); err != nil {
		t.Fatal(err)
	}
	before := process
	if err := before.Kill(); err != nil {
		t.Fatal(err)
	}
	<-g.ended
	other, second := group(t)
	if err := g.add(other, spec, start); err != nil {
		t.Fatal(err)
	}
	if process == before {
		t.Fatal("no process was started")
	}
	g.close()
	if got := signalOf(t, c); got != syscall.SIGKILL {
		t.Errorf("a group of before ended by %v", got)
	}
	if got := signalOf(t, second); got != syscall.SIGKILL {
		t.Errorf("a group of later ended by %v", got)
	}
}
