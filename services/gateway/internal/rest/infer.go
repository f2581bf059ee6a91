package rest

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/classify"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/jsoninfer"
)

// Headers of the protocol, in the form that net/http keeps them.
const (
	headerLength  = "Inference-Header-Content-Length"
	headerTimeout = "X-Request-Timeout"
	headerTrace   = "Traceparent"
)

// call is one inference request on its way through the front end. Calls are
// used again, for the memory that they hold.
type call struct {
	options  Options
	pool     *tensor.Pool
	decoder  jsoninfer.Decoder
	envelope jsoninfer.Envelope
	body     body
	inflate  inflater
	deflate  deflater
	held     int64    // bytes of the budget, beside the body's own
	json     []byte   // of the response
	parts    [][]byte // of the response, while it is written
}

// keepJSON is the most memory, in bytes, that a call keeps for the JSON of the
// next response.
const keepJSON = 1 << 20

func newCall(pool *tensor.Pool, o Options) *call {
	return &call{options: o, pool: pool, decoder: jsoninfer.Decoder{Pool: pool, MaxTensor: o.MaxInput}}
}

func (s *server) infer(w http.ResponseWriter, r *http.Request) error {
	model, version, err := target(r)
	if err != nil {
		return err
	}
	return s.inferModel(w, r, model, version)
}

func (s *server) inferModel(w http.ResponseWriter, r *http.Request, model, version string) error {
	v, err := s.engine.Snapshot().Resolve(model, version)
	if err != nil {
		return err
	}
	if v.Config.Decoupled {
		return errs.New(errs.Unsupported, "HTTP end point doesn't support models with decoupled transaction policy").WithModel(model)
	}
	c, ok := s.calls.Get().(*call)
	if !ok {
		c = newCall(s.engine.Pool(), s.options)
	}
	defer s.putCall(c)
	q := s.engine.NewRequest(v)
	id := q.Work.Request
	if err := s.run(c, w, r, v, q); err != nil {
		s.fail(w, err, id.String())
	}
	return nil
}

func (s *server) putCall(c *call) {
	s.options.Budget.Give(c.held)
	c.held = 0
	s.calls.Put(c)
}

// run reads the request into q, has it answered and writes the answer.
func (s *server) run(c *call, w http.ResponseWriter, r *http.Request, v *core.Version, q *infer.Request) error {
	ctx, cancel, err := c.deadline(r, q)
	if err != nil {
		return err
	}
	defer cancel()
	if err := c.read(w, r, v, q); err != nil {
		q.Release()
		return err
	}
	if err := classify.Check(v.Config, c.envelope.Classes); err != nil {
		q.Release()
		return err
	}
	q.Trace = r.Header.Get(headerTrace)
	id := q.ID // q is the engine's from here on
	p, v, err := s.engine.Infer(ctx, v, q)
	if err != nil {
		return err
	}
	defer p.Release()
	if err := classify.Apply(v.Config, c.envelope.Classes, p); err != nil {
		return err
	}
	p.PassTurn() // before the writing, which a slow client may hold up
	begun := time.Now()
	err = c.write(w, r, id, v.Ref, p)
	s.options.Answered(time.Since(begun))
	return err
}

// maxTimeout stands for any longer time that a client may name, so that it can
// be added to the present.
const maxTimeout = 365 * 24 * time.Hour

// deadline applies the client's X-Request-Timeout: seconds, or a duration with
// its unit, such as 150ms.
func (c *call) deadline(r *http.Request, q *infer.Request) (context.Context, context.CancelFunc, error) {
	text := r.Header.Get(headerTimeout)
	if text == "" {
		return r.Context(), func() {}, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		d, err = time.ParseDuration(text + "s")
	}
	if err != nil || d <= 0 {
		return nil, nil, errs.New(errs.InvalidParameter,
			"header '%s' must be a positive number of seconds or a duration such as 150ms, got: %s", headerTimeout, text)
	}
	d = min(d, maxTimeout)
	q.Deadline = q.Received.Add(d)
	ctx, cancel := context.WithTimeout(r.Context(), d)
	return ctx, cancel, nil
}

// write sends the response p to the request of the given id.
func (c *call) write(w http.ResponseWriter, r *http.Request, id string, model infer.ModelRef, p *infer.Response) error {
	json, err := jsoninfer.AppendResponse(c.json[:0], id, model, p, &c.envelope)
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
	if size > 0 {
		w.Header().Set("Content-Type", typeBinary)
		w.Header().Set(headerLength, strconv.Itoa(len(json)))
	} else {
		w.Header().Set("Content-Type", typeJSON)
	}
	return c.send(w, acceptedEncoding(r.Header.Get("Accept-Encoding")), len(json)+size, c.parts)
}

// send answers with the parts, size bytes in all.
func (c *call) send(w http.ResponseWriter, encoding string, size int, parts [][]byte) error {
	if encoding != identity {
		squeezed, err := c.deflate.run(encoding, parts...)
		if err != nil {
			return err
		}
		w.Header().Set("Content-Encoding", encoding)
		size, parts = len(squeezed), [][]byte{squeezed}
	}
	w.Header().Set("Content-Length", strconv.Itoa(size))
	w.WriteHeader(http.StatusOK)
	c.writeAll(w, size, parts)
	return nil
}

// binaryParts adds the bytes that follow the JSON, and returns their sum.
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
