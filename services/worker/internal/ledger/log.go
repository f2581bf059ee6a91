// Package ledger logs a worker's executions to a file, so that audits can check
// that nothing ran twice.
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
	Request string `json:"request"`
	ID      string `json:"id,omitempty"`
	Attempt uint32 `json:"attempt"`
	// Iteration counts those of a request that runs again, from 0.
	Iteration  uint32 `json:"iteration,omitempty"`
	Epoch      uint64 `json:"epoch"`
	Batch      uint64 `json:"batch"`
	Model      string `json:"model"`
	Version    int64  `json:"version"`
	Generation uint64 `json:"generation"`
	// Outcome and Executions, how often the model ran, are those of an end.
	Outcome    string `json:"outcome,omitempty"`
	Executions int    `json:"executions,omitempty"`
}

// Log writes what begins and ends to a file, each batch with one write, so that
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

// Entry is a batch that has begun.
type Entry struct {
	line Line
	work []infer.Work
	ids  []string // the clients' own
}

// Begin writes that a batch of the model's is taken up. It copies what it keeps.
func (l *Log) Begin(b *infer.Batch, model infer.ModelRef) *Entry {
	if l == nil {
		return nil
	}
	e := &Entry{line: Line{
		Event: "begin", Worker: l.worker, Incarnation: b.Instance.Worker, Slot: b.Instance.Slot,
		Epoch: b.ID.Epoch, Batch: b.ID.Number, Model: model.ID().String(), Version: model.Version, Generation: model.Generation,
	}}
	for _, r := range b.Requests {
		e.work, e.ids = append(e.work, r.Work), append(e.ids, r.ID)
	}
	l.write(e, nil)
	return e
}

// End writes what became of the requests of a batch.
func (l *Log) End(e *Entry, outcomes []infer.Outcome, executions int) {
	if l == nil || e == nil {
		return
	}
	e.line.Event, e.line.Executions = "end", executions
	l.write(e, outcomes)
}

// write writes a line for each request.
func (l *Log) write(e *Entry, outcomes []infer.Outcome) {
	line := e.line
	line.UnixNanos = time.Now().UnixNano()
	var text []byte
	for i, work := range e.work {
		line.Request, line.ID, line.Attempt, line.Iteration = work.Request.String(), e.ids[i], work.Attempt, work.Iteration
		if i < len(outcomes) {
			line.Outcome = word(outcomes[i])
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
		return "canceled"
	default:
		return "rejected"
	}
}
