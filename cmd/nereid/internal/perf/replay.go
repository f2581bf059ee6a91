package perf

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/values"
	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/recording"
	"github.com/nereid-serving/nereid/libs/tensor"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// Trace is a recording to send again.
type Trace struct {
	Recording *recording.Recording
	// Callers has the headers that identify tenants to the server, by their names. Requests of
	// other tenants go with Header.
	Callers map[string]http.Header
	Header  http.Header
	// Verify holds the responses against the recorded ones.
	Verify *values.Tolerance
}

// replay is a trace whose requests are encoded.
type replay struct {
	requests []replayed // by their times
	verify   *values.Tolerance
	redacted int
}

// replayed is one request of a trace.
type replayed struct {
	at       time.Duration
	class    int
	payload  *payload
	deadline time.Duration // 0 for none
	sequence string        // with its model; empty for none
	answers  [][]byte      // that were recorded, as ModelInferResponse
}

// NewReplay returns a bench that sends the requests of a trace again. Each model and tenant is a
// class of its own.
func NewReplay(t Target, trace *Trace, o Options) (*Bench, error) {
	if len(trace.Recording.Requests) == 0 {
		return nil, errs.New(errs.ConfigInvalid, "the recording has no requests")
	}
	r := &replay{verify: trace.Verify}
	var classes []Class
	for i := range trace.Recording.Requests {
		from := &trace.Recording.Requests[i]
		q, err := r.request(&t, trace, from, &classes)
		if err != nil {
			return nil, errs.Wrap(errs.ConfigInvalid, err, "request %d of the recording cannot be sent: %v", from.GetNumber(), err)
		}
		r.requests = append(r.requests, q)
	}
	slices.SortStableFunc(r.requests, func(a, b replayed) int { return cmp.Compare(a.at, b.at) })
	b, err := New(t, classes, o)
	if err != nil {
		return nil, err
	}
	b.replay = r
	return b, nil
}

// request encodes a request, and adds its class where it is the first.
func (r *replay) request(t *Target, trace *Trace, from *recording.Request, classes *[]Class) (q replayed, err error) {
	message := new(inference.ModelInferRequest)
	if err := proto.Unmarshal(from.GetRequest(), message); err != nil {
		return q, err
	}
	class := slices.IndexFunc(*classes, func(c Class) bool {
		return c.Model == message.GetModelName() && c.Version == message.GetModelVersion() && c.Caller == from.GetTenant()
	})
	if class < 0 {
		class = len(*classes)
		header, ok := trace.Callers[from.GetTenant()]
		if !ok {
			header = trace.Header
		}
		*classes = append(*classes, Class{Model: message.GetModelName(), Version: message.GetModelVersion(), Caller: from.GetTenant(), Header: header, Share: 1})
	}
	q = replayed{at: time.Duration(from.GetOffsetNs()), class: class, deadline: cmp.Or(t.Timeout, time.Duration(from.GetDeadlineNs())), sequence: sequenceOf(message)}
	switch {
	case from.GetRedacted():
		r.redacted++
		if err := fill(message); err != nil {
			return q, err
		}
	case len(message.GetRawInputContents()) != len(message.GetInputs()):
		return q, fmt.Errorf("it has %d inputs and the contents of %d", len(message.GetInputs()), len(message.GetRawInputContents()))
	case from.End != nil:
		q.answers = from.End.GetResponses()
	}
	q.payload, err = encode(t, &(*classes)[class], message, q.deadline)
	return q, err
}

// fill gives the inputs of a redacted request zeros, or empty texts.
func fill(m *inference.ModelInferRequest) error {
	for _, in := range m.GetInputs() {
		datatype, ok := tensor.ParseDatatype(in.GetDatatype())
		if !ok {
			return fmt.Errorf("input %q has the unknown datatype %q", in.GetName(), in.GetDatatype())
		}
		elements, ok := tensor.Shape(in.GetShape()).Elements()
		size, known := tensor.Shape(in.GetShape()).ByteSize(datatype)
		if !known { // texts, each after its length
			size = 4 * elements
		}
		if !ok || size < 0 || size > maxFilled {
			return fmt.Errorf("the shape %v of input %q is too large", in.GetShape(), in.GetName())
		}
		m.RawInputContents = append(m.RawInputContents, make([]byte, size))
	}
	return nil
}

// maxFilled bounds the contents that are made for an input whose own were left out, in bytes.
const maxFilled = 1 << 31

// sequenceOf names the sequence of a request.
func sequenceOf(m *inference.ModelInferRequest) string {
	id := m.GetParameters()["sequence_id"]
	if id == nil {
		return ""
	}
	return m.GetModelName() + "\x00" + id.String()
}

// playback is one run of a replay, whose requests it hands out in their order. It is safe for
// concurrent use.
type playback struct {
	mu      sync.Mutex
	next    int                      // guarded by mu
	last    map[string]chan struct{} // closed at the end of a sequence's last request; guarded by mu
	from    *replay
	answers *Answers // nil where they are not compared
}

// Answers is how the responses of a replay compare with the recorded ones.
type Answers struct {
	mu sync.Mutex
	// Compared requests have a recorded response; Different of them have now another one.
	Compared  int64 `json:"compared"`
	Different int64 `json:"different"`
	// Example is how the first one differs.
	Example string `json:"example,omitempty"`
}

func (r *replay) play() *playback {
	p := &playback{from: r, last: make(map[string]chan struct{})}
	if r.verify != nil {
		p.answers = new(Answers)
	}
	return p
}

// length is that of the replay at a speed. The last request is within.
func (r *replay) length(speed float64) time.Duration {
	return time.Duration(float64(r.requests[len(r.requests)-1].at)/speed) + time.Millisecond
}

// offsets yields when requests are due.
func (r *replay) offsets(speed float64) iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		for i := range r.requests {
			if !yield(time.Duration(float64(r.requests[i].at) / speed)) {
				return
			}
		}
	}
}

// take implements feed. The requests of a sequence wait for the one before.
func (p *playback) take(int) *call {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := &p.from.requests[p.next]
	p.next++
	c := &call{class: q.class, payload: q.payload, deadline: q.deadline}
	if q.sequence != "" {
		c.turn = &turn{before: p.last[q.sequence], done: make(chan struct{})}
		p.last[q.sequence] = c.turn.done
	}
	if p.answers != nil && len(q.answers) > 0 {
		c.keep = true
		c.judge = func(got []*client.Response) { p.answers.compare(got, q.answers, *p.from.verify) }
	}
	return c
}

// turn is the place of a request behind an earlier one.
type turn struct {
	before, done chan struct{} // before is nil for the first
}

// await waits for the request before.
func (t *turn) await(ctx context.Context) {
	if t == nil || t.before == nil {
		return
	}
	select {
	case <-t.before:
	case <-ctx.Done():
	}
}

// pass lets the next request go.
func (t *turn) pass() {
	if t != nil {
		close(t.done)
	}
}

// compare counts the responses of a request against the recorded ones.
func (a *Answers) compare(got []*client.Response, recorded [][]byte, tolerance values.Tolerance) {
	difference := compareAnswers(got, recorded, tolerance)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.Compared++
	if difference != "" {
		if a.Different++; a.Example == "" {
			a.Example = difference
		}
	}
}

// compareAnswers says how responses differ; it is empty where they do not.
func compareAnswers(got []*client.Response, recorded [][]byte, tolerance values.Tolerance) string {
	var want []*client.Response
	for _, message := range recorded {
		m := new(inference.ModelInferResponse)
		if err := proto.Unmarshal(message, m); err != nil {
			return "the recorded response cannot be read: " + err.Error()
		}
		if len(m.GetOutputs()) == 0 {
			continue // the end of a stream
		}
		r, err := client.ResponseOf(m)
		if err != nil {
			return "the recorded response: " + err.Error()
		}
		want = append(want, r)
	}
	if len(got) != len(want) {
		return fmt.Sprintf("%d responses with outputs, %d were recorded", len(got), len(want))
	}
	for i := range want {
		if len(got[i].Outputs) != len(want[i].Outputs) {
			return fmt.Sprintf("%d outputs, %d were recorded", len(got[i].Outputs), len(want[i].Outputs))
		}
		for _, output := range want[i].Outputs {
			at := slices.IndexFunc(got[i].Outputs, func(t client.Tensor) bool { return t.Name == output.Name })
			if at < 0 {
				return fmt.Sprintf("the output %q is missing", output.Name)
			}
			d, err := values.Compare(output, got[i].Outputs[at], tolerance)
			switch {
			case err != nil:
				return err.Error()
			case d.Beyond > 0:
				return fmt.Sprintf("output %q of model %q: %d of %d elements, by up to %.3g", output.Name, want[i].Model, d.Beyond, d.Elements, d.Largest)
			}
		}
	}
	return ""
}
