package decisionlog

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/services/scheduler/core"
)

const (
	// blockSize is how much is written at a time, unless a step is larger.
	blockSize = 64 << 10
	// queued is how many blocks may wait to be written.
	queued = 64
	// head is the size of a block's length and checksum.
	head = 8
	// delay is how long a step waits for its block to fill up.
	delay = time.Second
)

// Config says where to write a log.
type Config struct {
	// Path is the file. An existing file is replaced.
	Path string
	// MaxBytes is the size that the log must not exceed; it ends before. 0 is no limit.
	MaxBytes int64
	Header   Header
	Log      *zap.Logger
}

// Writer writes a log. Event and Decided never wait: if the disk is too slow or full, or the log has reached its
// maximum size, the log ends, with one warning.
type Writer struct {
	config Config
	full   chan []byte // blocks to be written
	spare  chan []byte
	over   chan struct{} // closed when the log ends
	ended  atomic.Bool   // the log has ended, or Run has returned

	encoder *encoder // owned by the caller of Event and Decided

	mu    sync.Mutex
	block []byte // guarded by mu
	size  int64  // of all blocks; guarded by mu
	cause error  // why the log has ended; guarded by mu

	file *os.File // set by Open

	// Owned by Run.
	written int64 // whole blocks
	failed  bool  // nothing more can be written
	warned  bool
}

// New returns a writer that opens nothing before Open. Steps wait until Run.
func New(c Config) *Writer {
	return &Writer{
		config: c, encoder: newEncoder(), block: make([]byte, head, blockSize+blockSize/4),
		full: make(chan []byte, queued), spare: make(chan []byte, queued), over: make(chan struct{}),
	}
}

// Open creates the file. Its error has the reason config_invalid.
func (w *Writer) Open() error {
	file, err := os.Create(w.config.Path)
	if err != nil {
		return errs.Wrap(errs.ConfigInvalid, err, "--decision-log=%s: the file cannot be written: give a path in a directory that is there and writable", w.config.Path)
	}
	w.file = file
	return nil
}

// Event starts a step. Calls of Event and Decided must alternate, one at a time.
func (w *Writer) Event(now mono.Time, e *core.Event) {
	if w.ended.Load() {
		return
	}
	w.encoder.b = w.encoder.b[:0]
	w.encoder.event(now, e)
}

// Decided ends the step with what the core decided.
func (w *Writer) Decided(list []core.Decision) {
	if w.ended.Load() {
		return
	}
	w.encoder.decisions(list)
	w.mu.Lock()
	w.block = append(w.block, w.encoder.b...)
	if len(w.block) >= blockSize {
		w.sealLocked()
	}
	w.mu.Unlock()
}

// sealLocked queues the current block for writing, or ends the log.
func (w *Writer) sealLocked() {
	w.size += int64(len(w.block))
	if w.config.MaxBytes > 0 && w.size > w.config.MaxBytes {
		w.endLocked(errors.New("it would be larger than --decision-log-bytes allows"))
		return
	}
	select {
	case w.full <- w.block:
	default:
		w.endLocked(errors.New("the disk is too slow"))
		return
	}
	select {
	case w.block = <-w.spare:
	default:
		w.block = make([]byte, head, blockSize+blockSize/4)
	}
}

// endLocked ends the log early.
func (w *Writer) endLocked(cause error) {
	w.ended.Store(true)
	if w.cause == nil {
		w.cause, w.block = cause, w.block[:head]
		close(w.over)
	}
}

// Run writes until ctx is done, and then writes the rest. It must be called once, after Open.
func (w *Writer) Run(ctx context.Context) {
	flush := time.NewTicker(delay)
	defer flush.Stop()
	w.begin()
	for over := w.over; ctx.Err() == nil; {
		select {
		case b := <-w.full:
			w.write(b)
		case <-flush.C:
			w.mu.Lock()
			if len(w.block) > head {
				w.sealLocked()
			}
			w.mu.Unlock()
		case <-over:
			over = nil
			w.warn()
		case <-ctx.Done():
		}
	}
	w.finish()
	if err := w.file.Close(); err != nil {
		w.fail(err)
	}
	w.warn()
}

// warn logs once why the log ended early, if it has.
func (w *Writer) warn() {
	w.mu.Lock()
	cause := w.cause
	w.mu.Unlock()
	if cause != nil && !w.warned {
		w.warned = true
		w.config.Log.Warn("decision log ended early: the scheduler goes on without it",
			append(obs.Err(cause), zap.String("file", w.config.Path), zap.Int64("bytes", w.written))...)
	}
}

// begin writes the format line and the header.
func (w *Writer) begin() {
	line := magic + version + "\n"
	if _, err := w.file.WriteString(line); err != nil {
		w.fail(err)
		return
	}
	w.written = int64(len(line))
	text, _ := json.Marshal(&w.config.Header) // cannot fail
	w.write(append(make([]byte, head), text...))
}

// finish writes what is left.
func (w *Writer) finish() {
	w.mu.Lock()
	rest := w.block
	early := w.ended.Swap(true) // nothing is sealed from now on
	w.mu.Unlock()
	for {
		select {
		case b := <-w.full:
			w.write(b)
			continue
		default:
		}
		break
	}
	if !early && len(rest) > head {
		w.write(rest)
	}
}

// write writes a block completely or not at all.
func (w *Writer) write(b []byte) {
	if w.failed {
		return
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)-head))
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[head:], castagnoli()))
	if _, err := w.file.Write(b); err != nil {
		_ = w.file.Truncate(w.written) // otherwise a reader finds the log cut off
		w.fail(err)
		return
	}
	w.written += int64(len(b))
	select {
	case w.spare <- b[:head]:
	default:
	}
}

// fail ends a log that can no longer be written.
func (w *Writer) fail(err error) {
	w.failed = true
	w.mu.Lock()
	defer w.mu.Unlock()
	w.endLocked(err)
}
