package rest

import (
	"errors"
	"net/http"
	"os"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/gateway/internal/jsoninfer"
)

const typeEvents = "text/event-stream; charset=utf-8"

// Each event is one line of data.
const (
	eventBegin = "data: "
	eventEnd   = "\n\n"
)

// events is a generate request whose responses are sent one by one as server-sent events.
type events struct{ generation }

// generateStream responds with an event for each response of the model, and one for an error. The first event
// determines the status. A request that never reaches the model is refused without an event.
func (s *server) generateStream(c *call) error {
	e := events{generation{c}}
	c.Body, c.Sink, c.Single = e, e, ""
	if err := s.path.Start(c.http.Context(), &c.Call); err != nil {
		return err
	}
	err := s.path.Finish(&c.Call)
	if err == nil {
		e.begin(http.StatusOK)
		return nil
	}
	visible := s.path.Visible(c.Method, err)
	if !c.responding {
		describe(c.writer.Header(), visible, "")
		e.begin(visible.Reason.HTTP())
	}
	c.json = append(appendError(append(c.json[:0], eventBegin...), visible), eventEnd...)
	_, _ = c.writer.Write(c.json) // the client may have disconnected
	return nil
}

// begin sends the headers, unless they have been sent.
func (e events) begin(status int) {
	if e.responding {
		return
	}
	h := e.writer.Header()
	e.setQuota(h)
	e.setLoad(h)
	h.Set(headerRequestID, e.requestID())
	h.Set("Content-Type", typeEvents)
	h.Set("Cache-Control", "no-cache") // intermediaries must not buffer events
	e.responding = true
	e.writer.WriteHeader(status)
}

// Send implements path.Sink. It returns once the event is written: a client that does not read delays only its
// own request, until its connection times out.
func (e events) Send(p *infer.Response) error {
	json, err := jsoninfer.AppendGenerated(append(e.json[:0], eventBegin...), e.ID, e.Served().Ref, p, &e.Account)
	e.json = json
	if err != nil {
		return err
	}
	e.begin(http.StatusOK)
	e.json = append(json, eventEnd...)
	if _, err = e.writer.Write(e.json); err == nil {
		err = http.NewResponseController(e.writer).Flush()
	}
	switch {
	case err == nil || errors.Is(err, http.ErrNotSupported):
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errs.Wrap(errs.ResponseStalled, err, "the client does not read the responses")
	}
	return errs.Wrap(errs.Canceled, err, "")
}
