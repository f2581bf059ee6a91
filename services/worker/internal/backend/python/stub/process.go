package stub

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/confine"
	"github.com/nereid-serving/nereid/services/worker/internal/cores"
)

// Spec is a stub to be started.
type Spec struct {
	Interpreter string
	// Environment is that of the process, as os.Environ has it.
	Environment []string
	// MemoryBytes bounds the memory that is the process's own; 0 is no bound.
	MemoryBytes uint64
	// Cores are those that the process's threads stay on.
	Cores cores.Set
	// User is whom the process runs as; nil is the worker's user.
	User *syscall.Credential
	// Line takes a line of the process's output. It is called from two goroutines.
	Line func(stream, line string)
	Pool *tensor.Pool
}

// Starter starts processes that die with the worker. They would die with the thread
// that has started them, so that it keeps one.
type Starter struct {
	starts chan func()
	ended  chan struct{}
	guard  guard
}

// NewStarter makes a starter, with the file of its guard's code. What it starts gains no
// privileges; confined, it has not all of the worker's rights either, and an error says
// what the kernel left it. Close ends the starter, and what it has started.
func NewStarter(guardFile string, confined bool) (*Starter, error) {
	s := &Starter{starts: make(chan func()), ended: make(chan struct{}), guard: guard{file: guardFile, groups: make(map[int]bool)}}
	changed := make(chan error)
	go s.run(confined, changed)
	return s, <-changed
}

func (s *Starter) run(confined bool, changed chan<- error) {
	runtime.LockOSThread() // and not unlocked: the thread, which is changed here, ends with the goroutine
	if unix.Gettid() == unix.Getpid() {
		// But for the first of the process: another goroutine cannot have it now.
		locked := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(locked)
			s.run(confined, changed)
		}()
		<-locked
		runtime.UnlockOSThread()
		return
	}
	defer close(s.ended)
	if confined {
		changed <- confine.Thread()
	} else {
		changed <- unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	for start := range s.starts {
		start()
	}
}

// Close kills what is left of what was started.
func (s *Starter) Close() {
	close(s.starts)
	<-s.ended
	s.guard.close()
}

// start starts a command in the starter's thread.
func (s *Starter) start(c *exec.Cmd, on cores.Set) error {
	started := make(chan error)
	s.starts <- func() { on.Run(func() { started <- c.Start() }) }
	return <-started
}

// Start starts a stub process.
func (s *Starter) Start(spec Spec) (*Stub, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket for a stub: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "stub")
	defer theirs.Close()
	if err := unix.SetNonblock(pair[0], true); err != nil {
		return nil, errors.Join(err, unix.Close(pair[0]))
	}
	connection, err := NewConnection(pair[0], spec.Pool)
	if err != nil {
		return nil, err
	}
	p, err := s.process(spec, theirs)
	if err != nil {
		return nil, errors.Join(err, connection.Close())
	}
	return &Stub{Process: p, connection: connection}, nil
}

// process starts the process, with the other end of the socket.
func (s *Starter) process(spec Spec, socket *os.File) (*Process, error) {
	p := &Process{ended: make(chan struct{}), guard: &s.guard, memoryBytes: spec.MemoryBytes, oomKills: oomKills()}
	var outputs, inputs [2]*os.File
	defer func() {
		closeFiles(inputs[:])
	}()
	for i := range outputs {
		var err error
		if outputs[i], inputs[i], err = os.Pipe(); err != nil {
			closeFiles(outputs[:])
			return nil, fmt.Errorf("make a pipe for a stub: %w", err)
		}
	}
	p.command = &exec.Cmd{
		Path: spec.Interpreter, Args: []string{spec.Interpreter, "-m", "nereid.stub"},
		Env:    spec.Environment,
		Stdout: inputs[0], Stderr: inputs[1], ExtraFiles: []*os.File{socket},
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: spec.User},
	}
	if err := s.start(p.command, spec.Cores); err != nil {
		closeFiles(outputs[:])
		return nil, fmt.Errorf("start %s: %w", spec.Interpreter, err)
	}
	if err := s.bound(p.command.Process.Pid, &spec); err != nil {
		p.Kill()
		p.wait(outputs, spec.Line)
		return nil, err
	}
	go p.wait(outputs, spec.Line)
	return p, nil
}

// bound has a process guarded, and bounds its memory.
func (s *Starter) bound(pid int, spec *Spec) error {
	if err := s.guard.add(pid, spec, func(c *exec.Cmd) error { return s.start(c, cores.Set{}) }); err != nil {
		return err
	}
	if spec.MemoryBytes == 0 {
		return nil
	}
	limit := unix.Rlimit{Cur: spec.MemoryBytes, Max: spec.MemoryBytes}
	if err := unix.Prlimit(pid, unix.RLIMIT_DATA, &limit, nil); err != nil {
		return fmt.Errorf("bound the memory of a stub to %d bytes: %w", spec.MemoryBytes, err)
	}
	return nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// Process is the process of a stub.
type Process struct {
	command *exec.Cmd
	ended   chan struct{} // closed when it has ended, and its output has been read
	guard   *guard
	// memoryBytes bounds its memory, and oomKills is what the kernel had killed before it.
	memoryBytes uint64
	oomKills    int64

	mu   sync.Mutex
	over bool     // the process has ended; guarded by mu
	last []string // lines of its output; guarded by mu
	exit error    // why it has ended; guarded by mu
}

// Ended is closed when the process has ended and all of its output has been taken.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Kill kills the process and its group.
func (p *Process) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over { // else its number may be another's
		_ = unix.Kill(-p.command.Process.Pid, unix.SIGKILL)
	}
}

// wait reads the output and takes the end of the process.
func (p *Process) wait(outputs [2]*os.File, line func(stream, line string)) {
	defer close(p.ended)
	var reading sync.WaitGroup
	for i, stream := range [...]string{"stdout", "stderr"} {
		reading.Go(func() { p.read(&output{File: outputs[i]}, stream, line) })
	}
	p.await()
	for _, f := range outputs {
		_ = f.SetReadDeadline(time.Now())
	}
	reading.Wait()
	closeFiles(outputs[:])
}

// await waits for the process, and then kills what it has left of its group.
func (p *Process) await() {
	pid := p.command.Process.Pid
	var info unix.Siginfo
	for { // it stays, and with it the group's number, until Wait
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	p.mu.Lock()
	_ = unix.Kill(-pid, unix.SIGKILL)
	p.over = true
	p.mu.Unlock()
	p.guard.remove(pid)
	err := p.command.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.exit = err
}

// output is the pipe that a process writes to, until a deadline says that the process
// has ended. What it had written by then is read, however late, and nothing else is
// waited for: a process that was left behind may hold the pipe.
type output struct {
	*os.File
	over bool
	left int // bytes, when it is over
}

func (o *output) Read(b []byte) (int, error) {
	if !o.over {
		n, err := o.File.Read(b)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if err := o.end(); err != nil {
			return 0, err
		}
	}
	if o.left == 0 {
		return 0, io.EOF
	}
	n, err := o.File.Read(b[:min(len(b), o.left)])
	o.left -= n
	return n, err
}

// end counts what is left to read.
func (o *output) end() error {
	conn, err := o.SyscallConn()
	if err != nil {
		return err
	}
	var counted error
	err = conn.Control(func(fd uintptr) {
		o.left, counted = unix.IoctlGetInt(int(fd), unix.TIOCINQ) //nolint:gosec // a descriptor
	})
	o.over = true
	return errors.Join(err, counted, o.SetReadDeadline(time.Time{}))
}

// What is kept of a process's output, and passed on of a line.
const (
	keptLines = 20
	lineBytes = 4 << 10
)

// read passes lines on. The rest of one that is too long is left out.
func (p *Process) read(from io.Reader, stream string, line func(stream, line string)) {
	lines := bufio.NewReaderSize(from, lineBytes)
	rest := false
	for {
		text, err := lines.ReadSlice('\n')
		if len(text) > 0 && !rest {
			l := strings.ToValidUTF8(string(bytes.TrimRight(text, "\r\n")), "\uFFFD")
			p.keep(l)
			line(stream, l)
		}
		if rest = errors.Is(err, bufio.ErrBufferFull); err != nil && !rest {
			return
		}
	}
}

func (p *Process) keep(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last = append(p.last, line); len(p.last) > keptLines {
		p.last = p.last[1:]
	}
}

// Cause says how the process, which has ended, did that, and with which last words.
func (p *Process) Cause() (how string, lines []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var exit *exec.ExitError
	switch {
	case p.exit == nil:
		how = "it ended by itself"
	case errors.As(p.exit, &exit):
		how = p.signaled(exit.ProcessState)
	default:
		how = p.exit.Error()
	}
	return how, p.last
}

// signaled says how the process ended where that was not by itself.
func (p *Process) signaled(s *os.ProcessState) string {
	status, ok := s.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() {
		return fmt.Sprintf("it ended with exit status %d", s.ExitCode())
	}
	signal := status.Signal()
	switch {
	case signal == unix.SIGKILL && p.oomKills >= 0 && oomKills() > p.oomKills:
		return "it was killed by the kernel: out of memory"
	case signal == unix.SIGKILL:
		return "it was killed (SIGKILL)"
	}
	how := fmt.Sprintf("it was ended by signal %d (%v)", signal, signal)
	if p.memoryBytes > 0 { // which code in C seldom expects
		how += fmt.Sprintf("; its memory is bounded to %d bytes", p.memoryBytes)
	}
	return how
}

// oomKills is how many processes the kernel has killed since memory was short; -1
// where it does not say. A process may be killed by others in the life of one that the
// kernel kills, so that what is made of it is the likely cause, not a proof.
func oomKills() int64 {
	text, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(text)) {
		if count, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(count), 10, 64)
			if err != nil {
				return -1
			}
			return n
		}
	}
	return -1
}
