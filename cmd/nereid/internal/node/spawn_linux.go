package node

import (
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// spawn starts a process on the given cores, sends how that went, waits for its
// end and sends that. Unless it may outlive this process it gets a SIGTERM when
// this one dies. The kernel watches the thread that started it rather than the
// process, so the thread is kept until the end; it is thrown away with its
// cores then.
func spawn(command *exec.Cmd, cores []int, outlive bool, started, ended chan<- error) {
	runtime.LockOSThread()
	if len(cores) > 0 {
		var set unix.CPUSet
		for _, n := range cores {
			set.Set(n)
		}
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			started <- err
			return
		}
	}
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the node, which drains it
	if !outlive {
		command.SysProcAttr.Pdeathsig = syscall.SIGTERM
	}
	if err := command.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	ended <- command.Wait()
}
