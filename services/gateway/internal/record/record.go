// Package record records the requests of a gateway for a client: while the client reads, it gets copies of
// requests and responses in the format of package recording.
//
// A request never waits for a recording. If there is no memory for a copy, or a slow client has too much
// queued, the copy is lost, and the recording reports how many were.
package record

import (
	"context"
	"hash/maphash"
	"io"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/policy"
	"github.com/nereid-serving/nereid/libs/recording"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	calls "github.com/nereid-serving/nereid/services/gateway/internal/path"
)

const (
	// maxRecordings is the maximum number of concurrent recordings.
	maxRecordings = 4
	// maxQueue bounds the parts that are queued for a recording's client, in bytes.
	maxQueue = 64 << 20
	// flushInterval is the delay within which recorded parts are sent to the client.
	flushInterval = time.Second
	// lastResponses is how long a complete recording waits for its requests to end.
	lastResponses = 5 * time.Second
	// partBytes is roughly the memory of a part in addition to texts and contents.
	partBytes = 512
	// maxPatterns bounds the patterns of a recording, since each request is matched against them.
	maxPatterns = 100
)

// Options say what to record.
type Options struct {
	// Models and Tenants are patterns for [path.Match]; an empty list matches everything.
	Models, Tenants []string
	// Share is the fraction of requests that is recorded, in (0, 1]. A sequence is recorded completely or not
	// at all.
	Share float64
	// MaxBytes ends the recording after about that many bytes before compression.
	MaxBytes int64
	// Duration ends the recording.
	Duration time.Duration
	// Answers records the responses, too.
	Answers bool
	// Sees reports whether the recording caller may use a model. It may be nil.
	Sees func(model string) bool
}

// Check refuses options with the reason config_invalid.
func (o *Options) Check() error {
	if n := len(o.Models) + len(o.Tenants); n > maxPatterns {
		return errs.New(errs.InvalidParameter, "the recording has %d names and patterns of models and tenants: want %d at most, such as text_*", n, maxPatterns)
	}
	for _, pattern := range slices.Concat(o.Models, o.Tenants) {
		if _, err := path.Match(pattern, ""); err != nil {
			return errs.New(errs.InvalidParameter, "the pattern %q cannot be read: want a name, or one with * and ? such as text_*", pattern)
		}
	}
	switch {
	case !(o.Share > 0 && o.Share <= 1):
		return errs.New(errs.InvalidParameter, "the share is %v: want more than 0, and 1 at most", o.Share)
	case o.MaxBytes < 1 || o.Duration <= 0:
		return errs.New(errs.InvalidParameter, "the recording is of %d bytes and %v: want more than 0", o.MaxBytes, o.Duration)
	}
	return nil
}

// Recordings are the recordings in progress at a gateway. It is safe for concurrent use. A nil Recordings
// allows none.
type Recordings struct {
	deps    Deps
	stop    chan struct{} // closed by Stop
	stopped sync.Once

	mu     sync.Mutex
	active atomic.Pointer[[]*session] // replaced under mu
}

// Deps are the dependencies of recordings.
type Deps struct {
	// Allowed says whether clients may record.
	Allowed bool
	// Server is the gateway's name in recordings.
	Server string
	// Budget is charged with the copies.
	Budget *memory.Budget
	// Now returns the time on the clock of requests; Wall converts such a time to wall-clock time.
	Now  func() mono.Time
	Wall func(mono.Time) time.Time
}

// New returns the recordings of a gateway, with none in progress.
func New(d Deps) *Recordings { return &Recordings{deps: d, stop: make(chan struct{})} }

// Observer returns the observer that passes requests to all recordings.
func (r *Recordings) Observer() calls.Observer {
	return calls.Observer{
		Checked:    func(c *calls.Call) { r.each(func(s *session) { s.checked(c) }) },
		Responding: func(c *calls.Call, p *infer.Response) { r.each(func(s *session) { s.responding(c, p) }) },
		Ended:      func(o *calls.Outcome) { r.each(func(s *session) { s.ended(o) }) },
	}
}

func (r *Recordings) each(do func(*session)) {
	if list := r.active.Load(); list != nil {
		for _, s := range *list {
			do(s)
		}
	}
}

// Stop ends all recordings because the gateway drains.
func (r *Recordings) Stop() { r.stopped.Do(func() { close(r.stop) }) }

// Refusal returns why the gateway does not record, or nil if it does.
func (r *Recordings) Refusal() error {
	if r == nil || !r.deps.Allowed {
		return errs.New(errs.Unsupported, "Recording is disabled. Start the server with '--allow-recording=true' to enable.")
	}
	return nil
}

// Record writes a recording to out until one of the options' bounds is reached, ctx ends or the gateway drains.
// It flushes out about once a second. started is called once, before anything is written.
func (r *Recordings) Record(ctx context.Context, o Options, started func(), out io.Writer, flush func() error) (*recording.Summary, error) {
	if err := r.Refusal(); err != nil {
		return nil, err
	}
	if err := o.Check(); err != nil {
		return nil, err
	}
	s, err := r.open(o)
	if err != nil {
		return nil, err
	}
	defer r.close(s)
	started()
	w, err := recording.NewWriter(out, &nereidv1.RecordingStart{TimeUnixNs: r.deps.Wall(s.start).UnixNano(), Server: r.deps.Server, Share: o.Share})
	if err != nil {
		return nil, err
	}
	if err := s.write(ctx, r.stop, w, flush); err != nil {
		w.Abort()
		return s.summary(), err
	}
	summary := s.summary()
	if err := w.Close(*summary); err != nil {
		return summary, err
	}
	return summary, flush()
}

// open adds a recording to those in progress.
func (r *Recordings) open(o Options) (*session, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*session
	if now := r.active.Load(); now != nil {
		list = *now
	}
	if len(list) >= maxRecordings {
		return nil, errs.New(errs.RecordingBusy, "%d recordings run at this gateway, which are the most: stop one", len(list))
	}
	if err := r.deps.Budget.Reserve(recording.Memory); err != nil {
		return nil, err
	}
	s := &session{Options: o, budget: r.deps.Budget, start: r.deps.Now(), seed: maphash.MakeSeed(), ready: make(chan struct{}, 1), pending: make(map[infer.RequestID]*pending)}
	list = append(slices.Clone(list), s)
	r.active.Store(&list)
	return s, nil
}

// close removes a recording from those in progress, and releases what it holds.
func (r *Recordings) close(s *session) {
	r.mu.Lock()
	list := slices.DeleteFunc(slices.Clone(*r.active.Load()), func(other *session) bool { return other == s })
	if r.active.Store(&list); len(list) == 0 {
		r.active.Store(nil)
	}
	r.mu.Unlock()
	s.release()
	r.deps.Budget.Release(recording.Memory)
}

// session is one recording.
type session struct {
	Options
	budget *memory.Budget
	start  mono.Time
	seed   maphash.Seed
	ready  chan struct{} // buffers one element, set when there is something to write

	mu      sync.Mutex
	closed  bool                         // no more parts are accepted; guarded by mu
	why     string                       // why no more requests are accepted; empty while they are; guarded by mu
	number  uint64                       // of the last request; guarded by mu
	written int64                        // number of requests that were copied; guarded by mu
	bytes   int64                        // of all parts so far; guarded by mu
	lost    int64                        // guarded by mu
	pending map[infer.RequestID]*pending // requests whose end is still to be recorded; guarded by mu
	parts   [][]byte                     // queued for the client; guarded by mu
	waiting int64                        // bytes of queued parts and of responses; guarded by mu
}

// pending is a recorded request that has not ended.
type pending struct {
	number    uint64
	redacted  bool
	responses [][]byte
	bytes     int64 // of the responses
}

// checked records a request.
func (s *session) checked(c *calls.Call) {
	q := c.Request
	level := policy.RecordContents
	if c.Tenant != nil {
		level = c.Tenant.Recording
	}
	if level == policy.RecordNothing || !s.wants(c) {
		return
	}
	// The size is known before anything is copied.
	size := q.DescriptorBytes() + partBytes
	if level == policy.RecordContents {
		size += q.InputBytes()
	}
	number, ok := s.reserve(size)
	if !ok {
		return
	}
	part, err := s.encodeRequest(c, level == policy.RecordShapes, number, q.Received.Sub(s.start))
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || s.closed {
		s.returnLocked(size)
		s.lost++
		return
	}
	s.written++
	s.pending[q.Work.Request] = &pending{number: number, redacted: level == policy.RecordShapes}
	s.addLocked(part, size)
}

// wants reports whether to record the request.
func (s *session) wants(c *calls.Call) bool {
	tenant := ""
	if c.Tenant != nil {
		tenant = c.Tenant.Name
	}
	if !matches(s.Models, c.Model) || !matches(s.Tenants, tenant) || s.Sees != nil && !s.Sees(c.Model) {
		return false
	}
	draw := rand.Float64() //nolint:gosec // no secret
	if q := &c.Request.Sequence; *q != (infer.Sequence{}) {
		draw = float64(maphash.String(s.seed, q.CorrelationID())) / (1 << 63) / 2
	}
	return draw < s.Share
}

func matches(patterns []string, name string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool {
		ok, _ := path.Match(p, name)
		return ok
	})
}

// reserve charges the bytes of another request and numbers it. If memory is short or too much is queued for the
// client, the request is lost.
func (s *session) reserve(n int64) (number uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.why != "" {
		return 0, false
	}
	if s.bytes >= s.MaxBytes {
		s.completeLocked("bytes")
		return 0, false
	}
	if !s.chargeLocked(n) {
		s.lost++
		return 0, false
	}
	s.number++
	return s.number, true
}

func (s *session) chargeLocked(n int64) bool {
	if s.waiting+n > maxQueue || s.budget.Reserve(n) != nil {
		return false
	}
	s.waiting += n
	return true
}

func (s *session) returnLocked(n int64) {
	s.waiting -= n
	s.budget.Release(n)
}

// addLocked queues a part for which n bytes were charged, and corrects the charge to its actual size.
func (s *session) addLocked(part []byte, n int64) {
	more := int64(cap(part)) - n
	s.waiting += more
	s.budget.Hold(more)
	s.bytes += int64(len(part))
	s.parts = append(s.parts, part)
	s.wake()
}

func (s *session) wake() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// completeLocked stops accepting requests.
func (s *session) completeLocked(why string) {
	if s.why == "" {
		s.why = why
		s.wake()
	}
}

// responding records a response.
func (s *session) responding(c *calls.Call, r *infer.Response) {
	if !s.Answers {
		return
	}
	s.mu.Lock()
	p := s.pending[c.Work]
	n := r.OutputBytes() + partBytes
	ok := p != nil && !p.redacted && !s.closed && s.chargeLocked(n)
	s.mu.Unlock()
	if !ok {
		return
	}
	// A single goroutine serves the call, so it owns p until the end.
	message, err := encodeResponse(c, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || s.closed {
		s.returnLocked(n)
		return
	}
	p.responses = append(p.responses, message)
	p.bytes += n
}

// ended records the end of a request.
func (s *session) ended(o *calls.Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pending[o.Request]
	if p == nil || s.closed {
		return
	}
	delete(s.pending, o.Request)
	responses, size := p.responses, partBytes+p.bytes
	if !s.chargeLocked(size) { // for the copy, while the originals still exist
		if responses, size = nil, partBytes; !s.chargeLocked(size) {
			s.returnLocked(p.bytes)
			return
		}
	}
	part, err := recording.AppendPart(nil, &nereidv1.RecordingPart{Part: &nereidv1.RecordingPart_End{End: &nereidv1.RecordedEnd{
		Number: p.number, TookNs: int64(o.Finished.Sub(o.Received)), Reason: string(o.Reason), Version: o.Version,
		ResponseCount: int64(o.Responses), Responses: responses, Cached: o.Cached,
	}}})
	s.returnLocked(p.bytes)
	if err != nil {
		s.returnLocked(size)
		return
	}
	s.addLocked(part, size)
}

// write writes the parts until the recording is complete and its requests have ended.
func (s *session) write(ctx context.Context, stop <-chan struct{}, w *recording.Writer, flush func() error) error {
	end, tick := time.NewTimer(s.Duration), time.NewTicker(flushInterval)
	defer end.Stop()
	defer tick.Stop()
	var last <-chan time.Time // when to stop waiting for requests to end
	for done := false; !done; {
		flushing := false
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-stop:
			s.finish("draining")
			done = true
		case <-end.C:
			s.finish("duration")
		case <-last:
			done = true
		case <-tick.C:
			flushing = true
		case <-s.ready:
		}
		parts, complete, idle := s.take()
		if complete && last == nil {
			last = time.After(lastResponses)
		}
		done = done || complete && idle
		if err := s.writeParts(w, parts); err != nil {
			return err
		}
		if flushing {
			if err := w.Flush(); err != nil {
				return err
			}
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *session) finish(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.completeLocked(why)
}

// take returns the queued parts, whether no more requests are accepted, and whether all requests have ended.
func (s *session) take() (parts [][]byte, complete, idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	parts, s.parts = s.parts, nil
	return parts, s.why != "", len(s.pending) == 0
}

// writeParts writes parts, and releases them whether or not they were written.
func (s *session) writeParts(w *recording.Writer, parts [][]byte) (err error) {
	for i, part := range parts {
		if err == nil {
			err = w.Write(part)
		}
		parts[i] = nil
		s.mu.Lock()
		s.returnLocked(int64(cap(part)))
		s.mu.Unlock()
	}
	return err
}

// release releases what the recording holds.
func (s *session) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.parts, s.pending = true, nil, nil
	s.budget.Release(s.waiting)
	s.waiting = 0
}

func (s *session) summary() *recording.Summary {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &recording.Summary{Requests: s.written, Lost: s.lost, Ended: s.why}
}
