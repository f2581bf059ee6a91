package cores

import (
	"fmt"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// Node returns the cores of a NUMA node.
func Node(n int) (Set, error) {
	list, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/node/node%d/cpulist", n))
	if err != nil {
		return Set{}, fmt.Errorf("this machine has no NUMA node %d", n)
	}
	return Parse(string(list))
}

// Allowed returns the cores that the process may use.
func Allowed() (Set, error) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(os.Getpid(), &allowed); err != nil {
		return Set{}, fmt.Errorf("find the cores of this process: %w", err)
	}
	var s Set
	for n := range most {
		if allowed.IsSet(n) {
			s.list = append(s.list, n)
		}
	}
	return s, nil
}

// check makes sure that the process may use each core.
func (s Set) check() error {
	allowed, err := Allowed()
	if err != nil {
		return err
	}
	for _, n := range s.list {
		if !slices.Contains(allowed.list, n) {
			return fmt.Errorf("core %d is not among those of this process", n)
		}
	}
	return nil
}

// Run calls f on a thread that stays on the cores; threads that f starts stay
// there too. It costs two system calls, or nothing for the empty set. Should
// the kernel refuse the cores, which it took when they were parsed, f runs
// anywhere.
func (s Set) Run(f func()) {
	if s.Empty() {
		f()
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, pinned unix.CPUSet
	for _, n := range s.list {
		pinned.Set(n)
	}
	if unix.SchedGetaffinity(0, &before) == nil && unix.SchedSetaffinity(0, &pinned) == nil {
		defer unix.SchedSetaffinity(0, &before) //nolint:errcheck // it was the thread's own
	}
	f()
}
