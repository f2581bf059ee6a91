//go:build linux && (amd64 || arm64)

// Package confine drops rights of a thread that starts processes of other people's
// code, so that they have the rights of a container with default settings. The
// thread cannot regain these rights, and neither can the processes that it starts.
package confine

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Thread takes rights from the calling thread and from all that it starts: those
// capabilities that containers do not have by default, and system calls that models have
// no use for. The caller has locked its goroutine to the thread, which has to end with
// it. An error says what the kernel did not do; the rest is done.
func Thread() error {
	// Filters of processes without rights are taken of those alone that cannot gain any.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("keep new privileges from processes: %w", err)
	}
	return errors.Join(dropCapabilities(), filter())
}

// capabilities are those that containers have by default: Docker's.
func capabilities() []uintptr {
	return []uintptr{
		unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_KILL, unix.CAP_SETGID, unix.CAP_SETUID, unix.CAP_SETPCAP,
		unix.CAP_NET_BIND_SERVICE, unix.CAP_NET_RAW, unix.CAP_SYS_CHROOT, unix.CAP_MKNOD, unix.CAP_AUDIT_WRITE, unix.CAP_SETFCAP,
	}
}

// dropCapabilities leaves no others to processes that the thread starts. The thread
// keeps its own.
func dropCapabilities() error {
	kept := capabilities()
	for c := uintptr(0); ; c++ {
		// The kernel may know more of them than this program: it refuses the first that is none.
		there, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read capabilities: %w", err)
		}
		if there == 0 || slices.Contains(kept, c) {
			continue
		}
		err = unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EPERM) {
			return nil // who may not drop them has few, and will not gain any
		}
		if err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
}

// denied are system calls that change the machine, or look into other processes.
func denied() []uint32 {
	return []uint32{
		unix.SYS_ACCT, unix.SYS_ADD_KEY, unix.SYS_ADJTIMEX, unix.SYS_BPF, unix.SYS_CLOCK_ADJTIME, unix.SYS_CLOCK_SETTIME, unix.SYS_DELETE_MODULE,
		unix.SYS_FINIT_MODULE, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSOPEN, unix.SYS_FSPICK, unix.SYS_INIT_MODULE, unix.SYS_IO_URING_ENTER,
		unix.SYS_IO_URING_REGISTER, unix.SYS_IO_URING_SETUP, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_KEXEC_LOAD, unix.SYS_KEYCTL, unix.SYS_LOOKUP_DCOOKIE,
		unix.SYS_MOUNT, unix.SYS_MOUNT_SETATTR, unix.SYS_MOVE_MOUNT, unix.SYS_NFSSERVCTL, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_OPEN_TREE,
		unix.SYS_PERF_EVENT_OPEN, unix.SYS_PIVOT_ROOT, unix.SYS_PTRACE, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_REBOOT,
		unix.SYS_REQUEST_KEY, unix.SYS_SETDOMAINNAME, unix.SYS_SETHOSTNAME, unix.SYS_SETNS, unix.SYS_SETTIMEOFDAY, unix.SYS_SWAPOFF, unix.SYS_SWAPON,
		unix.SYS_SYSLOG, unix.SYS_UMOUNT2, unix.SYS_UNSHARE, unix.SYS_USERFAULTFD, unix.SYS_VHANGUP,
	}
}

// Where the kernel has what a filter looks at.
const (
	numberAt       = 0
	architectureAt = 4
	flagsAt        = 16 // of clone: the lower half of the first argument
)

// newNamespaces are the flags of clone that make namespaces: in a new one of users a
// process has all rights.
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// foreign is where the system calls of x86's third interface begin.
const foreign = 0x40000000

// program is the filter. What a call is refused with does not hang on its arguments, but
// for clone, so that the kernel looks most of them up in a table.
func program() []unix.SockFilter {
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	// unless passes the next instruction over where the comparison does not hold.
	unless := func(comparison uint16, k uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | comparison | unix.BPF_K, Jf: 1, K: k}
	}
	give := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	refuse := func(e unix.Errno) unix.SockFilter { return give(unix.SECCOMP_RET_ERRNO | uint32(e)) }

	architecture := uint32(unix.AUDIT_ARCH_X86_64)
	if runtime.GOARCH == "arm64" {
		architecture = unix.AUDIT_ARCH_AARCH64
	}
	p := []unix.SockFilter{
		load(architectureAt),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, K: architecture},
		refuse(unix.ENOSYS),
		load(numberAt),
		unless(unix.BPF_JGE, foreign), refuse(unix.ENOSYS),
		// Its flags are in memory, which a filter does not see: the C library takes clone then.
		unless(unix.BPF_JEQ, unix.SYS_CLONE3), refuse(unix.ENOSYS),
	}
	for _, number := range denied() {
		p = append(p, unless(unix.BPF_JEQ, number), refuse(unix.EPERM))
	}
	return append(p,
		unless(unix.BPF_JEQ, unix.SYS_CLONE), unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: 1},
		give(unix.SECCOMP_RET_ALLOW),
		load(flagsAt), unless(unix.BPF_JSET, newNamespaces), refuse(unix.EPERM),
		give(unix.SECCOMP_RET_ALLOW))
}

// filter has the kernel filter the thread's system calls.
func filter() error {
	p := program()
	f := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]} //nolint:gosec // a hundred
	// Older kernels make filtered processes slower unless they are told not to.
	for _, flags := range []uintptr{unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW, 0} {
		_, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&f)))
		if e == 0 {
			return nil
		}
		if flags == 0 || e != unix.EINVAL {
			return fmt.Errorf("filter system calls: %w", e)
		}
	}
	return nil
}
