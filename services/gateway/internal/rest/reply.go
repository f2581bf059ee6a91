package rest

import (
	"bytes"
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/gateway/internal/jsoninfer"
)

const (
	typeJSON   = "application/json"
	typeBinary = "application/octet-stream"
)

// Headers of an error response. Its body is exactly Triton's.
const (
	headerReason    = "Nereid-Reason"
	headerRequestID = "Nereid-Request-Id"
)

// defaultRetry is the Retry-After of a refusal that does not set its own.
const defaultRetry = time.Second

// reply responds 200 with v as JSON.
func reply(w http.ResponseWriter, v any) error { return replyWith(w, http.StatusOK, v) }

func replyWith(w http.ResponseWriter, status int, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	write(w, status, bytes.TrimSuffix(b.Bytes(), []byte("\n")))
	return nil
}

// write sends a whole JSON response. It ignores errors: the client may have disconnected.
func write(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", typeJSON)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// fail responds with err.
func (s *server) fail(c *call, err error) {
	e := s.path.Visible(c.Method, err)
	c.setQuota(c.writer.Header())
	if e.Reason.HTTP() == http.StatusUnauthorized {
		c.writer.Header().Set("WWW-Authenticate", `Bearer realm="nereid"`)
	}
	writeError(c.writer, e.Reason.HTTP(), e, c.requestID())
}

func writeError(w http.ResponseWriter, status int, e *errs.Error, id string) {
	describe(w.Header(), e, id)
	write(w, status, appendError(nil, e))
}

// describe sets the headers of an error.
func describe(h http.Header, e *errs.Error, id string) {
	after := e.RetryAfter
	if after == 0 && e.Reason.Retryable() {
		after = defaultRetry
	}
	if after > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(after.Seconds())), 10))
	}
	h.Set(headerReason, string(e.Reason))
	if id != "" {
		h.Set(headerRequestID, id)
	}
}

// appendError appends an error as JSON. Its message may quote a name from the request, with arbitrary bytes.
func appendError(dst []byte, e *errs.Error) []byte {
	return append(jsoninfer.AppendString(append(dst, `{"error":`...), strings.ToValidUTF8(e.Msg, "\uFFFD")), '}')
}
