package decisionlog

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/resources"
	"github.com/nereid-serving/nereid/services/scheduler/core"
)

// magic and version make up the first line of a log. version is the version of the format.
const (
	magic   = "nereid decision log "
	version = "3"
)

// maxBlock limits the size of a block: the largest steps are the reports of workers after a takeover.
const maxBlock = 256 << 20

// ErrTruncated says that a log ends in the middle of a block, as the log of a killed process may.
var ErrTruncated = errors.New("the decision log ends in the middle of a block")

// Header is the start of a log.
type Header struct {
	// Release is the scheduler's release, Pool the pool that it serves.
	Release string `json:"release"`
	Pool    string `json:"pool"`
	// Unix is when the log was started, in nanoseconds since 1970. Mono is the same instant on the clock of the
	// steps.
	Unix int64     `json:"unix_ns"`
	Mono mono.Time `json:"mono_ns"`
	// MaxRequests and MaxBytes are the core's configuration.
	MaxRequests int   `json:"max_queued_requests"`
	MaxBytes    int64 `json:"max_queued_bytes"`
	// RateLimited says whether the core has a rate limiter, Resources how much there is of each resource, in the form
	// of --rate-limit-resource.
	RateLimited bool     `json:"rate_limited,omitempty"`
	Resources   []string `json:"rate_limit_resources,omitempty"`
	// DeviceBatches is how many batches run on a device at a time.
	DeviceBatches int `json:"device_batches,omitempty"`
}

// Limits returns the core's configuration.
func (h Header) Limits() (core.Config, error) {
	c := core.Config{MaxRequests: h.MaxRequests, MaxBytes: h.MaxBytes, DeviceBatches: h.DeviceBatches}
	if !h.RateLimited {
		return c, nil
	}
	counts, err := resources.Parse(h.Resources)
	c.RateLimit = &core.RateLimit{Counts: counts}
	return c, err
}

// Step is an event that entered the core, and what the core decided.
type Step struct {
	Now       mono.Time
	Event     core.Event
	Decisions []Decision
}

// Decision is the record of a decision. For Dispatch, Units is the batch, and Slots is the slot of each unit if the
// model batches sequences.
type Decision struct {
	core.Decision
	Units []infer.Unit
	Slots []infer.Slot
}

// Reader reads a log.
type Reader struct {
	Header Header
	in     *bufio.Reader
	buffer bytes.Buffer
	steps  int
	decoder
}

// NewReader reads the start of a log. Errors have the reason config_invalid and say what is wrong with the log.
func NewReader(in io.Reader) (*Reader, error) {
	r := &Reader{in: bufio.NewReaderSize(in, blockSize)}
	line, err := r.in.ReadString('\n')
	format, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), magic)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, errs.Wrap(errs.ConfigInvalid, err, "the decision log cannot be read")
	case !ok:
		return nil, errs.New(errs.ConfigInvalid, "this is no decision log: one is written by --decision-log and begins with %q", magic+version)
	case format != version:
		return nil, errs.New(errs.ConfigInvalid, "the decision log has format %q, this release reads %q: read it with the release that wrote it", format, version)
	}
	text, err := r.block()
	if err != nil {
		return nil, r.damaged(noEOF(err))
	}
	if err := json.Unmarshal(text, &r.Header); err != nil {
		return nil, r.damaged(err)
	}
	return r, nil
}

// Next reads the next step into s. The step's decisions are valid until the next call. At the end Next returns
// io.EOF. If the error is [ErrTruncated], everything before it is complete.
func (r *Reader) Next(s *Step) error {
	for len(r.b) == 0 {
		b, err := r.block()
		if errors.Is(err, io.EOF) {
			return io.EOF
		}
		if err != nil {
			return r.damaged(err)
		}
		r.b = b
	}
	if err := r.step(s); err != nil {
		return r.damaged(err)
	}
	r.steps++
	return nil
}

// block reads the next block; io.EOF means that there is none.
func (r *Reader) block() ([]byte, error) {
	var head [8]byte
	if _, err := io.ReadFull(r.in, head[:]); err != nil {
		return nil, truncated(err)
	}
	n := binary.LittleEndian.Uint32(head[:4])
	if n > maxBlock {
		return nil, errMalformed
	}
	r.buffer.Reset()
	if _, err := io.CopyN(&r.buffer, r.in, int64(n)); err != nil { // a damaged length takes no more memory than the data that is there
		return nil, noEOF(err)
	}
	b := r.buffer.Bytes()
	if crc32.Checksum(b, castagnoli()) != binary.LittleEndian.Uint32(head[4:]) {
		return nil, errors.New("a block's checksum is wrong")
	}
	return b, nil
}

func truncated(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrTruncated
	}
	return err
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return ErrTruncated
	}
	return err
}

func (r *Reader) damaged(err error) error {
	return errs.Wrap(errs.ConfigInvalid, err, "the decision log is damaged after %d steps", r.steps)
}

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// Is reports whether in starts like a log of any version. It consumes nothing from in.
func Is(in *bufio.Reader) bool {
	text, _ := in.Peek(len(magic))
	return string(text) == magic
}
