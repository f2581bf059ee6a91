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

// defaultRetry is when to come back after a refusal that says no time.
const defaultRetry = time.Second

// reply answers 200 with v as JSON.
func reply(w http.ResponseWriter, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	write(w, http.StatusOK, bytes.TrimSuffix(b.Bytes(), []byte("\n")))
	return nil
}

// write sends a whole answer of JSON. That a client is not there any more to take it
// is nobody's concern.
func write(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", typeJSON)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// fail answers with err. The id is that of the request, if there is one yet.
func (s *server) fail(w http.ResponseWriter, err error, id string) {
	e := errs.From(err)
	s.options.Failed(e.Reason)
	if e.Reason == errs.Bug {
		s.options.Log(err)
	}
	writeError(w, e.Reason.HTTP(), e, id)
}

func writeError(w http.ResponseWriter, status int, e *errs.Error, id string) {
	after := e.RetryAfter
	if after == 0 && e.Reason.Retryable() {
		after = defaultRetry
	}
	if after > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64(math.Ceil(after.Seconds())), 10))
	}
	// A message may quote a name from the request, whatever its bytes are.
	b := jsoninfer.AppendString([]byte(`{"error":`), strings.ToValidUTF8(e.Msg, "\uFFFD"))
	b = jsoninfer.AppendString(append(b, `,"reason":`...), string(e.Reason))
	if id != "" {
		b = jsoninfer.AppendString(append(b, `,"request_id":`...), id)
	}
	write(w, status, append(b, '}'))
}
