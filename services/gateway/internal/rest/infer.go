package rest

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/jsoninfer"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/tenants"
)

// Headers of the protocol, in the form in which net/http stores them.
const (
	headerLength  = "Inference-Header-Content-Length"
	headerTimeout = "X-Request-Timeout"
	headerEnvoy   = "X-Envoy-Expected-Rq-Timeout-Ms"
	headerTrace   = "Traceparent"
)

// call is one request on its way through the front end. Calls are reused for the memory that they hold.
type call struct {
	path.Call
	http   *http.Request
	writer http.ResponseWriter
	body   slowBody

	options    *Options
	stalled    func() // counts a response that its client does not read
	pool       *tensor.Pool
	decoder    jsoninfer.Decoder
	envelope   jsoninfer.Envelope
	content    body
	inflate    inflater
	deflate    deflater
	json       []byte   // of the response
	parts      [][]byte // of the response while it is written
	responding bool     // the response's status has been sent
}

// keepJSON is how much memory, in bytes, a call retains for the JSON of its next response.
const keepJSON = 1 << 20

// connected is the key of [WithConnected].
type connected struct{}

// WithConnected returns the context for the calls of a connection. before says whether the connection was open
// before the drain started: see [core.Execution].
func WithConnected(ctx context.Context, before bool) context.Context {
	return context.WithValue(ctx, connected{}, before)
}

func (s *server) takeCall(w http.ResponseWriter, r *http.Request) *call {
	c, ok := s.calls.Get().(*call)
	if !ok {
		c = &call{options: &s.options, stalled: s.stalled, pool: s.gateway.Pool()}
		c.decoder = jsoninfer.Decoder{Pool: c.pool, MaxTensor: s.options.MaxInput, Account: &c.Account}
	}
	c.http, c.writer = r, w
	c.Caller, c.Body, c.Sink, c.Single, c.One, c.Headers = c, c, c, "HTTP end point", "", nil
	c.Trace = r.Header.Get(headerTrace)
	c.Connected, _ = r.Context().Value(connected{}).(bool)
	if of, ok := r.Context().Value(connectionKey{}).(*connection); ok && of != nil {
		c.Client = of
	}
	c.body.begin(c)
	return c
}

func (s *server) putCall(c *call) {
	c.http, c.writer, c.body, c.Client = nil, nil, slowBody{}, nil
	if cap(c.json) > keepJSON {
		c.json = nil
	}
	if cap(c.deflate.out.bytes) > keepJSON {
		c.deflate.out.bytes = nil
	}
	c.responding, c.Method, c.Work, c.Quota, c.Tenant = false, "", infer.RequestID{}, tenants.Reservation{}, nil
	s.calls.Put(c)
}

func (s *server) infer(c *call) error {
	c.Headers = c.eachHeader
	return s.path.Infer(c.http.Context(), &c.Call)
}

func (c *call) eachHeader(each func(name string, values []string)) {
	for name, values := range c.http.Header {
		each(name, values)
	}
}

// Header implements path.Caller.
func (c *call) Header(name string) []string { return c.http.Header.Values(name) }

// Names implements path.Caller.
func (c *call) Names() []string {
	if c.http.TLS == nil {
		return nil
	}
	return path.CertificateNames(c.http.TLS.PeerCertificates)
}

// requestID returns the id that the gateway has given to the request, or an empty string before that.
func (c *call) requestID() string {
	if c.Work == (infer.RequestID{}) {
		return ""
	}
	return c.Work.String()
}

// Receive implements path.Body: the path names the model.
func (c *call) Receive() error { return nil }

// Decode implements path.Body.
func (c *call) Decode() error {
	if err := c.deadline(); err != nil {
		return err
	}
	if err := c.read(); err != nil {
		return err
	}
	c.Classes, c.Shared = c.envelope.Classes, path.Shared{Inputs: c.envelope.SharedInputs, Outputs: c.envelope.SharedOutputs}
	return nil
}

// maxTimeout replaces any longer timeout, so that it can be added to the current time.
const maxTimeout = 365 * 24 * time.Hour

// deadline applies the client's X-Request-Timeout: seconds, or a duration with a unit, such as 150ms. Without
// that header it applies Envoy's timeout, which is in milliseconds.
func (c *call) deadline() error {
	text := c.http.Header.Get(headerTimeout)
	if text == "" {
		if ms, err := strconv.ParseUint(c.http.Header.Get(headerEnvoy), 10, 63); err == nil && ms > 0 {
			c.SetTimeout(time.Duration(min(ms, uint64(maxTimeout/time.Millisecond))) * time.Millisecond)
		}
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		d, err = time.ParseDuration(text + "s")
	}
	if err != nil || d <= 0 {
		return errs.New(errs.InvalidParameter,
			"header '%s' must be a positive number of seconds or a duration such as 150ms, got: %s", headerTimeout, text)
	}
	c.SetTimeout(min(d, maxTimeout))
	return nil
}

// Send implements path.Sink.
func (c *call) Send(p *infer.Response) error {
	encoding := acceptedEncoding(c.http.Header.Get("Accept-Encoding"))
	defer c.Account.EndCoding()
	if c.encodes(p, encoding) >= memory.LargeBody {
		if err := c.Account.StartCoding(c.Context()); err != nil {
			return err
		}
	}
	json, err := jsoninfer.AppendResponse(c.json[:0], c.ID, c.Served().Ref, p, &c.envelope, &c.Account)
	if cap(json) <= keepJSON {
		c.json = json
	}
	if err != nil {
		return err
	}
	c.parts = append(c.parts[:0], json)
	defer func() { clear(c.parts) }() // they point into the response
	size, err := c.binaryParts(p)
	if err != nil {
		return err
	}
	h := c.writer.Header()
	c.setQuota(h)
	h.Set(headerRequestID, c.requestID())
	if size > 0 {
		h.Set("Content-Type", typeBinary)
		h.Set(headerLength, strconv.Itoa(len(json)))
	} else {
		h.Set("Content-Type", typeJSON)
	}
	return c.send(encoding, len(json)+size, c.parts)
}

// encodes returns how many bytes of tensors are written as text or compressed.
func (c *call) encodes(p *infer.Response, encoding string) (n int64) {
	for i := range p.Outputs {
		if encoding != identity || !c.envelope.BinaryOutput(p.Outputs[i].Name) {
			n += p.Outputs[i].Data.Length
		}
	}
	return n
}

// send responds with the parts, size bytes in all.
func (c *call) send(encoding string, size int, parts [][]byte) error {
	w := c.writer
	if encoding != identity {
		compressed, err := c.deflate.run(encoding, &c.Account, parts...)
		if err != nil {
			return err
		}
		w.Header().Set("Content-Encoding", encoding)
		size, parts = len(compressed), [][]byte{compressed}
	}
	c.Account.EndCoding() // before waiting for the client
	w.Header().Set("Content-Length", strconv.Itoa(size))
	c.responding = true
	w.WriteHeader(http.StatusOK)
	c.writeAll(w, parts)
	return nil
}

// setQuota reports what is left of the tenant's request limit, if it has one, in the headers of
// draft-ietf-httpapi-ratelimit-headers-10: q requests in w seconds, of which r are left and all are available
// again in t seconds.
func (c *call) setQuota(h http.Header) {
	q := &c.Quota
	if q.Limit == 0 {
		return
	}
	h.Set("RateLimit-Policy", fmt.Sprintf(`"requests";q=%d;w=%d`, q.Limit, max(int64(math.Ceil(q.Window.Seconds())), 1)))
	h.Set("RateLimit", fmt.Sprintf(`"requests";r=%d;t=%d`, q.Left, int64(math.Ceil(q.Reset.Seconds()))))
}

// binaryParts appends the bytes that follow the JSON, and returns their total size.
func (c *call) binaryParts(p *infer.Response) (size int, err error) {
	for i := range p.Outputs {
		out := &p.Outputs[i]
		if out.Data.Length == 0 || !c.envelope.BinaryOutput(out.Name) {
			continue
		}
		data, err := out.Data.Bytes()
		if err != nil {
			return 0, err
		}
		c.parts = append(c.parts, data)
		size += len(data)
	}
	return size, nil
}
