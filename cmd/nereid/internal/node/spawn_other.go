//go:build !linux

package node

import "os/exec"

// spawn starts a process, sends how that went, waits for its end and sends
// that. Only Linux ties it to cores and to this process's life.
func spawn(command *exec.Cmd, _ []int, _ bool, started, ended chan<- error) {
	if err := command.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	ended <- command.Wait()
}
