package stub

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
)

// guard is the process that kills the groups of stubs when the worker has died: stubs
// die with it by themselves, what models have started does not. It is started with the
// first stub, and again with the next when it has ended.
type guard struct {
	file string // its code

	mu     sync.Mutex
	groups map[int]bool // those that live; guarded by mu
	pipe   *os.File     // to the process; nil without one; guarded by mu
	ended  chan struct{}
}

// add has the group of a new stub guarded. start starts a command as stubs are started.
func (g *guard) add(group int, spec *Spec, start func(*exec.Cmd) error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.groups[group] = true
	if g.pipe != nil && g.tellLocked('+', group) {
		return nil
	}
	if err := g.startLocked(spec, start); err != nil {
		return err
	}
	for group := range g.groups {
		g.tellLocked('+', group)
	}
	return nil
}

// remove says that nothing is left of a group, whose number is not another's yet.
func (g *guard) remove(group int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.groups, group)
	if g.pipe != nil {
		g.tellLocked('-', group)
	}
}

// startLocked starts the process with the rights of the stub, whose interpreter it uses.
func (g *guard) startLocked(spec *Spec, start func(*exec.Cmd) error) error {
	theirs, ours, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe for the guard of stubs: %w", err)
	}
	defer theirs.Close()
	c := &exec.Cmd{
		Path: spec.Interpreter, Args: []string{spec.Interpreter, "-I", "-S", g.file},
		Env: []string{}, Dir: "/", Stdin: theirs,
		// A session of its own: it outlives the worker's group.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Credential: spec.User},
	}
	if err := start(c); err != nil {
		_ = ours.Close()
		return fmt.Errorf("start the guard of stubs: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		_ = c.Wait() // how it ended changes nothing: the next stub has one started
		close(ended)
	}()
	g.pipe, g.ended = ours, ended
	return nil
}

// tellLocked writes a line. It is false if the process has ended.
func (g *guard) tellLocked(what byte, group int) bool {
	if _, err := g.pipe.Write(append(strconv.AppendInt([]byte{what}, int64(group), 10), '\n')); err == nil {
		return true
	}
	_ = g.pipe.Close()
	g.pipe = nil
	return false
}

// close ends the process, which kills what is left.
func (g *guard) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pipe == nil {
		return
	}
	_ = g.pipe.Close()
	g.pipe = nil
	<-g.ended
}
