package rest

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/gateway/internal/jsoninfer"
)

// generation is a call whose JSON contains tensors and parameters directly by name. It is the body and the sink
// of a generate request.
type generation struct{ *call }

// generate responds with the single response that the model must give.
func (s *server) generate(c *call) error {
	g := generation{c}
	c.Body, c.Sink, c.Single = g, g, ""
	c.One = "generate expects model to produce exactly 1 response, use generate stream for model that generates various number of responses"
	return s.path.Infer(c.http.Context(), &c.Call)
}

// Receive implements path.Body: the path names the model.
func (generation) Receive() error { return nil }

// Decode implements path.Body.
func (g generation) Decode() error {
	if err := g.deadline(); err != nil {
		return err
	}
	if given, ok := g.http.Header["Content-Encoding"]; ok && given[0] != identity {
		return errs.New(errs.EncodingInvalid, "Unsupported content-encoding, only 'identity' is supported.")
	}
	b := &g.content
	defer g.close(b)
	var err error
	if *b, err = g.openJSON(); err != nil {
		return err
	}
	decode := func(json []byte) error { return g.decoder.DecodeGenerate(json, g.Target.Config, g.Request) }
	if b.size == 0 {
		return decode(nil)
	}
	return g.readJSON(b, b.size, decode)
}

// openJSON opens a body that consists only of JSON.
func (c *call) openJSON() (body, error) {
	limit := c.options.MaxInput
	if c.http.ContentLength > limit {
		return body{}, jsonTooLarge(c.http.ContentLength, limit)
	}
	if c.http.ContentLength >= 0 {
		return body{Reader: c.http.Body, size: c.http.ContentLength}, nil
	}
	b, err := c.spool(c.http.Body, limit, func(limit int64) error { return jsonTooLarge(limit+1, limit) })
	if err != nil {
		return body{}, cutOff(err)
	}
	return b, nil
}

// Send implements path.Sink.
func (g generation) Send(p *infer.Response) error {
	json, err := jsoninfer.AppendGenerated(g.json[:0], g.ID, g.Served().Ref, p, &g.Account)
	g.json = json
	if err != nil {
		return err
	}
	h := g.writer.Header()
	g.setQuota(h)
	g.setLoad(h)
	h.Set(headerRequestID, g.requestID())
	h.Set("Content-Type", typeJSON)
	g.parts = append(g.parts[:0], json)
	return g.send(identity, len(json), g.parts)
}
