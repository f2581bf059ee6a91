package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/process"
)

// worker is one device and the incarnations of its worker.
type worker struct {
	id      string
	device  Device
	node    Config
	log     *zap.Logger
	stdout  io.Writer
	stderr  *tail
	prober  *http.Client
	command func() *exec.Cmd

	mu      sync.Mutex
	port    int    // on which it serves its metrics and health; guarded by mu
	pid     int    // 0 while none runs; guarded by mu
	starts  int    // guarded by mu
	problem string // why none runs; guarded by mu
	last    string // how the last one ended; guarded by mu
	givenUp bool   // guarded by mu
}

// probeTimeout is how long a worker may take to report whether it is ready.
const probeTimeout = 2 * time.Second

func newWorker(c Config, d Deps, device Device, metricsPort int) *worker {
	w := &worker{
		id: c.ID + "-" + device.Name, device: device, node: c, stdout: d.Stdout, stderr: &tail{to: d.Stderr},
		port:   metricsPort,
		prober: &http.Client{Timeout: probeTimeout, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	w.log = d.Log.With(zap.String("worker_id", w.id))
	w.command = func() *exec.Cmd {
		command := exec.Command(c.Program, c.arguments(w.id, device, w.nextPort())...) //nolint:noctx // it outlives the context, to drain
		command.Env = append(os.Environ(), config.EnvName(config.FileFlag)+"=")        // that file is this program's
		command.Env = device.environment(append(command.Env, c.Environment...))
		return command
	}
	w.problem = "not started yet"
	return w
}

// nextPort is the port of the next process.
func (w *worker) nextPort() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.node.FreePorts {
		return w.port
	}
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return w.port // the process says what is wrong
	}
	defer l.Close()
	if address, ok := l.Addr().(*net.TCPAddr); ok {
		w.port = address.Port
	}
	return w.port
}

// run starts the process again and again until ctx is done, which gives nil, or
// the device's crashes are used up.
func (w *worker) run(ctx context.Context) error {
	crashes, pause := 0, w.node.Pause
	for ctx.Err() == nil {
		began := time.Now()
		err := w.runOnce(ctx)
		if time.Since(began) > w.node.Steady {
			crashes, pause = 0, w.node.Pause
		}
		crashes++
		switch {
		case ctx.Err() != nil: // it was asked to end
		case errors.Is(err, errUsage):
			err = fmt.Errorf("worker %s refuses its settings: %w", w.id, err)
			w.rests(err, true)
			return err
		case crashes >= w.node.CrashBudget:
			err = fmt.Errorf("worker %s ended %d times in a row, at last with %w", w.id, crashes, err)
			w.rests(err, true)
			return err
		default:
			w.rests(err, false)
			w.log.Warn("worker ended: it is started again", zap.Error(err), zap.Duration("pause", pause), zap.Int("crashes", crashes))
			lifecycle.Pause(ctx, pause)
			pause = min(2*pause, w.node.LongestPause)
		}
	}
	return nil
}

// errUsage is that a worker ended because of its settings: the next one would
// too.
var errUsage = errors.New("correct the flags behind --, the environment or the settings file, and start the node again")

// exited returns how a worker ended, with its last lines.
func exited(err error, words []string) error {
	if err == nil {
		err = errors.New("exit status 0")
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == process.ExitUsage {
		return fmt.Errorf("%s: %w", process.UsageMessage(words), errUsage)
	}
	return fmt.Errorf("%w: %s", err, cause(words))
}

// rests notes why no process runs.
func (w *worker) rests(why error, givenUp bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problem, w.givenUp = why.Error(), givenUp
	w.last = w.problem
}

// runOnce runs the process once. It asks the process to end when ctx is done, and
// returns how that ended, with its last lines.
func (w *worker) runOnce(ctx context.Context) error {
	command := w.command()
	command.Env = append(command.Env, w.history()...)
	command.Stdout, command.Stderr = w.stdout, w.stderr
	started, ended := make(chan error, 1), make(chan error, 1)
	go func() { // ends with the process
		spawn(command, w.device.Cores, w.node.KeepWorkers, started, ended)
	}()
	if err := <-started; err != nil {
		return errs.Wrap(errs.ConfigInvalid, err, "cannot start the worker (%v): name its program with --worker", err)
	}
	w.began(command.Process.Pid)
	defer w.over()
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		err = w.stop(command, ended)
	}
	return exited(err, w.stderr.last())
}

// longestExit bounds how much of the last exit a worker publishes.
const longestExit = 500

// history is the environment by which a worker publishes the restarts before it.
func (w *worker) history() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, w.last[:min(len(w.last), longestExit)])
	return []string{config.EnvName("restarts") + "=" + strconv.Itoa(w.starts), config.EnvName("last-exit") + "=" + last}
}

func (w *worker) began(pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pid, w.problem = pid, ""
	w.starts++
	w.log.Info("worker started", zap.Int("pid", pid), zap.String("device", w.device.Name), zap.String("product", w.device.Product), zap.Int("starts", w.starts))
}

func (w *worker) over() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pid = 0
}

// stop drains the process, and kills it when it takes too long.
func (w *worker) stop(command *exec.Cmd, ended <-chan error) error {
	_ = command.Process.Signal(syscall.SIGTERM) // or it has ended
	timeout := time.Duration(w.node.ExitTimeout) * time.Second
	late := time.NewTimer(timeout)
	defer late.Stop()
	select {
	case err := <-ended:
		return err
	case <-late.C:
		w.log.Warn("worker does not stop: it is killed", zap.Duration("after", timeout))
		_ = command.Process.Kill() // or it has ended
		return <-ended
	}
}

// ready returns what the worker lacks; nil is nothing.
func (w *worker) ready() error {
	w.mu.Lock()
	problem, admin := w.problem, "http://127.0.0.1:"+strconv.Itoa(w.port)
	w.mu.Unlock()
	if problem != "" {
		return errors.New(problem)
	}
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, admin+"/v2/health/ready", http.NoBody)
	if err != nil {
		return err
	}
	response, err := w.prober.Do(request)
	if err != nil {
		return fmt.Errorf("it does not respond: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusOK {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	if err != nil {
		return err
	}
	return errors.New(strings.TrimSpace(string(text)))
}

// status is what metrics show.
type status struct {
	pid     int
	starts  int
	givenUp bool
}

func (w *worker) status() status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return status{w.pid, w.starts, w.givenUp}
}
