package ledger

import (
	"encoding/json"
	"os"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// logBytes is how large a log gets before it is kept as the older one.
const logBytes = 512 << 20

// Line is one line of a log, as JSON: a request whose execution begins or has
// ended. An execution that never ends was under way when the worker died.
type Line struct {
	// Event is begin or end.
	Event string `json:"event"`
	// UnixNanos is when, by the wall clock.
	UnixNanos int64 `json:"unix_ns"`
	// Worker is the worker's id, and Incarnation the epoch of its lease.
	Worker      string `json:"worker"`
	Incarnation uint64 `json:"incarnation"`
	Slot        uint32 `json:"slot"`
	// Request is the gateway's incarnation, a hyphen and its number for the
	// request; ID is the client's own id.
	Request    string `json:"request"`
	ID         string `json:"id,omitempty"`
	Attempt    uint32 `json:"attempt"`
	Epoch      uint64 `json:"epoch"`
	Order      uint64 `json:"order"`
	Model      string `json:"model"`
	Version    int64  `json:"version"`
	Generation uint64 `json:"generation"`
	// Outcome and Executions, how often the model ran, are those of an end.
	Outcome    string `json:"outcome,omitempty"`
	Executions int    `json:"executions,omitempty"`
}

// Log writes what begins and ends to a file, each order with one write, so that
// what was written survives the process. It is for tests and audits: a disk
// that is slow slows every execution. The methods are safe for concurrent use,
// and do nothing for a nil log.
type Log struct {
	path, worker string

	mu      sync.Mutex
	file    *os.File // guarded by mu
	size    int64    // guarded by mu
	limit   int64
	failure error // the first; guarded by mu
}

// NewLog makes the log of a worker, for [Log.Open].
func NewLog(path, worker string) *Log { return &Log{path: path, worker: worker, limit: logBytes} }

// Open opens the file and goes on after what it holds. When it has grown to half
// a GiB it is renamed to its path with .1 behind it, in the place of the one
// before, and a new one is begun. The reason of an error is config_invalid.
func (l *Log) Open() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open()
}

// open opens the file. l.mu is held.
func (l *Log) open() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return errs.Wrap(errs.ConfigInvalid, err, "cannot write the log of executions: %v", err)
	}
	info, err := f.Stat()
	if err != nil {
		return errs.Wrap(errs.ConfigInvalid, err, "cannot write the log of executions: %v", err)
	}
	l.file, l.size = f, info.Size()
	return nil
}

// Close ends the log, which has been opened. It returns the first error of a
// write.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return first(l.failure, l.file.Close())
}

func first(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// write writes a line for each request of an execution.
func (l *Log) write(event string, r *Record) {
	if l == nil {
		return
	}
	e := &r.execution
	line := Line{
		Event: event, UnixNanos: time.Now().UnixNano(), Worker: l.worker, Incarnation: e.Instance.Worker, Slot: e.Instance.Slot,
		Epoch: e.Epoch, Order: e.Order, Model: e.Model.ID().String(), Version: e.Model.Version, Generation: e.Model.Generation,
		Executions: e.Executions,
	}
	var text []byte
	for i, work := range e.Work {
		line.Request, line.ID, line.Attempt = work.Request.String(), r.ids[i], work.Attempt
		if i < len(e.Outcomes) {
			line.Outcome = word(e.Outcomes[i])
		}
		one, _ := json.Marshal(line) // strings and numbers always can be
		text = append(append(text, one...), '\n')
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.append(text); err != nil && l.failure == nil {
		l.failure = err
	}
}

// append writes to the file, or to a new one if that is full. l.mu is held.
func (l *Log) append(text []byte) error {
	if l.size+int64(len(text)) > l.limit && l.size > 0 {
		if err := first(l.file.Close(), os.Rename(l.path, l.path+".1")); err != nil {
			return err
		}
		if err := l.open(); err != nil {
			return err
		}
	}
	n, err := l.file.Write(text)
	l.size += int64(n)
	return err
}

func word(o infer.Outcome) string {
	switch o {
	case infer.Succeeded:
		return "succeeded"
	case infer.Failed:
		return "failed"
	case infer.Canceled:
		return "cancelled"
	default:
		return "rejected"
	}
}
