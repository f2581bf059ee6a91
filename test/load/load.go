// Package load sends requests at a steady rate, whatever becomes of the ones
// before, and keeps a line about each. It behaves as clients behind a load
// balancer do: a gateway that breaks connections gets no requests until it is
// ready again, and a request waits while none is ready; one that was lost is
// not sent again, one that a gateway did not take since it drains goes to the
// next.
package load

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// Outcomes of a request.
const (
	// OK is a response with the right content.
	OK = "ok"
	// Failed is a response of the server that says why not.
	Failed = "failed"
	// Lost is a connection that broke, or could not be made.
	Lost = "lost"
	// Late is that no response came by the deadline.
	Late = "late"
	// Wrong is a response with another request's content.
	Wrong = "wrong"
	// Hung is that a request without a deadline has not ended.
	Hung = "hung"
)

// hang is after how long a request without a deadline has not ended for good: longer
// than any takeover, loss of a worker or execution here.
const hang = 30 * time.Second

// Target is a gateway.
type Target struct{ Name, HTTP, GRPC string }

// Traffic is the requests for one model, which takes and gives one INT32.
type Traffic struct {
	Model string
	// Rate is in requests per second, over all targets and both protocols.
	Rate float64
	// Burst is how many are sent at a time; 0 is one.
	Burst int
	// Endless requests have no deadline: whatever dies, the servers must end them.
	Endless bool
}

// Config says what is sent.
type Config struct {
	Targets []Target
	Traffic []Traffic
	// Timeout is the deadline of each request that has one, which the server is told.
	Timeout time.Duration
	// Prefix begins the requests' ids, so that those of several loads differ.
	Prefix string
	// Log takes a line of JSON for each request; see [Line].
	Log io.Writer
}

// Line is what became of one request.
type Line struct {
	ID      string `json:"id"`
	Model   string `json:"model"`
	Gateway string `json:"gateway"`
	Via     string `json:"via"` // http or grpc
	// Sent is when, as nanoseconds since 1970.
	Sent      int64      `json:"sent_unix_ns"`
	Responses []Response `json:"responses"`
}

// Response is one response to a request.
type Response struct {
	Unix    int64  `json:"unix_ns"`
	Outcome string `json:"outcome"`
	Reason  string `json:"reason,omitempty"`
	// Status is the name of the gRPC code that the reason has, on either protocol.
	Status string `json:"status,omitempty"`
	Text   string `json:"text,omitempty"`
}

// Load is a load under way. Its methods are safe for concurrent use.
type Load struct {
	config Config
	ways   []*way
	next   atomic.Uint64
	sent   sync.WaitGroup

	mu      sync.Mutex
	lines   []Line               // guarded by mu
	waiting map[uint64]time.Time // when those were sent that have no response; guarded by mu
	burst   chan struct{}        // closed when the next burst is sent; guarded by mu
	out     *json.Encoder        // guarded by mu
}

// way is one protocol of one target.
type way struct {
	target Target
	via    string
	up     atomic.Bool
	in     sync.RWMutex // read by the requests under way; held while the target is taken out
	mu     sync.Mutex
	client client.Client   // guarded by mu
	broken []client.Client // guarded by mu
}

// Start sends until ctx is done. [Load.Wait] waits for the last response.
func Start(ctx context.Context, c Config) *Load {
	l := &Load{config: c, waiting: make(map[uint64]time.Time), burst: make(chan struct{}), out: json.NewEncoder(c.Log)}
	for _, t := range c.Targets {
		for _, via := range []string{"http", "grpc"} {
			w := &way{target: t, via: via}
			w.up.Store(true)
			l.ways = append(l.ways, w)
			l.sent.Go(func() { w.watch(ctx, c.Timeout) })
		}
	}
	for _, t := range c.Traffic {
		l.sent.Go(func() { l.run(ctx, t) })
	}
	return l
}

// Wait waits until every request that was sent has its response, and returns the
// lines of all.
func (l *Load) Wait() []Line {
	l.sent.Wait()
	for _, w := range l.ways {
		w.close()
	}
	return l.Lines()
}

// Lines are those of the requests that have their responses.
func (l *Load) Lines() []Line {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Line(nil), l.lines...)
}

// Answered is a time: each request that was sent before it has its response.
func (l *Load) Answered() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := time.Now()
	for _, sent := range l.waiting {
		if sent.Before(first) {
			first = sent
		}
	}
	return first
}

// Without takes a target out until it is put back, as who stops a server for
// good reasons does with its balancer. When it returns no request to the target
// is under way.
func (l *Load) Without(name string) (back func()) {
	var out []*way
	for _, w := range l.ways {
		if w.target.Name == name {
			w.in.Lock()
			out = append(out, w)
		}
	}
	return func() {
		for _, w := range out {
			w.in.Unlock()
		}
	}
}

func (l *Load) run(ctx context.Context, t Traffic) {
	burst := max(t.Burst, 1)
	tick := time.NewTicker(time.Duration(float64(burst) * float64(time.Second) / t.Rate))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			for range burst {
				n := l.next.Add(1)
				l.sent.Go(func() { l.send(n, t) })
			}
			if burst > 1 {
				l.notify()
			}
		}
	}
}

// notify tells who waits that a burst is on its way.
func (l *Load) notify() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.burst)
	l.burst = make(chan struct{})
}

// Burst is closed when the next burst is on its way.
func (l *Load) Burst() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.burst
}

// send sends request n by the first way from n on that is up.
func (l *Load) send(n uint64, t Traffic) {
	ctx, cancel := context.WithTimeout(context.Background(), l.config.Timeout)
	defer cancel()
	line := Line{ID: fmt.Sprintf("%s-%d", l.config.Prefix, n), Model: t.Model, Sent: l.begin(n).UnixNano()}
	var a Response
	for {
		w := l.await(ctx, n)
		if w == nil {
			a = Response{Unix: time.Now().UnixNano(), Outcome: Late, Text: "no gateway was ready"}
			break
		}
		line.Gateway, line.Via = w.target.Name, w.via
		if t.Endless {
			a = w.askEndless(line.ID, t.Model, int32(n))
		} else {
			a = w.ask(ctx, line.ID, t.Model, int32(n))
		}
		w.in.RUnlock()
		if a.Reason != string(errs.Draining) {
			break
		}
		w.up.Store(false) // it did not take the request: the next one may
	}
	line.Responses = append(line.Responses, a)
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiting, n)
	l.lines = append(l.lines, line)
	_ = l.out.Encode(line) // what is missing in the log the audit finds
}

// begin notes that request n is sent now.
func (l *Load) begin(n uint64) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.waiting[n] = now
	return now
}

// await waits for a way that is up, as a request waits in a balancer: one that
// has not been sent is not lost. It is nil if none is up by the deadline.
func (l *Load) await(ctx context.Context, n uint64) *way {
	poll := time.NewTicker(look)
	defer poll.Stop()
	for {
		if w := l.way(n); w != nil || ctx.Err() != nil {
			return w
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// way is one that is up, locked for reading; nil if none is.
func (l *Load) way(n uint64) *way {
	for i := range uint64(len(l.ways)) {
		if w := l.ways[(n+i)%uint64(len(l.ways))]; w.up.Load() && w.in.TryRLock() {
			return w
		}
	}
	return nil
}

// askEndless makes one call without a deadline.
func (w *way) askEndless(id, model string, value int32) Response {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	watchdog := time.AfterFunc(hang, cancel)
	a := w.ask(ctx, id, model, value)
	if !watchdog.Stop() {
		a.Outcome, a.Reason, a.Status = Hung, "", ""
	}
	return a
}

// ask makes one call.
func (w *way) ask(ctx context.Context, id, model string, value int32) Response {
	c, err := w.present()
	if err != nil {
		return Response{Unix: time.Now().UnixNano(), Outcome: Lost, Text: err.Error()}
	}
	data := binary.LittleEndian.AppendUint32(nil, uint32(value))
	r, err := c.Infer(ctx, &client.Request{Model: model, ID: id, Inputs: []client.Tensor{
		{Description: client.Description{Name: "x", Datatype: tensor.Int32, Shape: tensor.Shape{1, 1}}, Data: data},
	}})
	a := Response{Unix: time.Now().UnixNano()}
	switch reason := errs.Of(err); {
	case err == nil && len(r.Outputs) == 1 && string(r.Outputs[0].Data) == string(data) && (r.ID == id):
		a.Outcome = OK
	case err == nil:
		a.Outcome, a.Text = Wrong, fmt.Sprintf("response %s with %v, asked %s with %v", r.ID, r.Outputs, id, data)
	case reason == errs.Canceled && ctx.Err() != nil: // as nobody but this client does, at its deadline
		a.Outcome, a.Text = Late, err.Error()
	case errs.Classified(err):
		a.Outcome, a.Reason, a.Status, a.Text = Failed, string(reason), codes.Code(reason.GRPC()).String(), err.Error()
	case ctx.Err() != nil || strings.Contains(err.Error(), codes.DeadlineExceeded.String()): // by the server's clock it may be earlier
		a.Outcome, a.Text = Late, err.Error()
	default:
		a.Outcome, a.Text = Lost, err.Error()
		w.up.Store(false)
		w.replace(c)
	}
	return a
}

func (w *way) present() (client.Client, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.client != nil {
		return w.client, nil
	}
	if w.via == "http" {
		w.client = client.HTTP(w.target.HTTP, client.Options{})
		return w.client, nil
	}
	var err error
	w.client, err = client.GRPC(w.target.GRPC, client.Options{})
	return w.client, err
}

// replace has the next request open a connection of its own in the place of one
// that broke, on which others may still wait.
func (w *way) replace(broken client.Client) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.client == broken {
		w.client = nil
		w.broken = append(w.broken, broken)
	}
}

// close closes all connections.
func (w *way) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.client != nil {
		w.broken = append(w.broken, w.client)
	}
	for _, c := range w.broken {
		_ = c.Close()
	}
}

// Pause of a balancer between looks at its targets.
const look = 50 * time.Millisecond

// watch takes a target that is not ready out, and brings it back, as a balancer
// does by its health endpoint. One that has no response yet is as it was.
func (w *way) watch(ctx context.Context, patience time.Duration) {
	tick := time.NewTicker(look)
	defer tick.Stop()
	h := &http.Client{Timeout: patience, Transport: &http.Transport{}}
	defer h.CloseIdleConnections()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.up.Store(ready(ctx, h, w.target))
		}
	}
}

func ready(ctx context.Context, h *http.Client, t Target) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+t.HTTP+"/v2/health/ready", nil)
	if err != nil {
		return false
	}
	response, err := h.Do(r)
	if err != nil {
		return ctx.Err() != nil
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}
