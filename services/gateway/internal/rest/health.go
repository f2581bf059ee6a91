package rest

import (
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
)

func (s *server) live(w http.ResponseWriter, r *http.Request) error {
	live := s.gateway.Live()
	return s.health(w, r, live, struct {
		Live bool `json:"live"`
	}{live})
}

func (s *server) ready(w http.ResponseWriter, r *http.Request) error {
	ready := s.gateway.Ready()
	return s.health(w, r, ready, struct {
		Ready bool `json:"ready"`
	}{ready})
}

func (s *server) modelReady(w http.ResponseWriter, r *http.Request) error {
	model, version, err := target(r)
	if err != nil {
		return err
	}
	ready, err := s.gateway.ModelReady(model, version)
	switch {
	case err != nil:
		return err
	case !ready:
		// The reason maps to status 503, but this endpoint responds with 400.
		e := errs.New(errs.ModelNotReady, "Model version not ready")
		writeError(w, http.StatusBadRequest, e, "")
		return nil
	}
	return s.health(w, r, true, struct {
		Name  string `json:"name"`
		Ready bool   `json:"ready"`
	}{model, true})
}

// health responds to a probe with 200 or 400. As in Triton, the response has no body: scripts compare
// everything that curl prints with the status. Clients that ask for JSON get the body of the Open Inference
// Protocol; with Options.HealthBody all clients do.
func (s *server) health(w http.ResponseWriter, r *http.Request, well bool, body any) error {
	status := http.StatusOK
	if !well {
		status = http.StatusBadRequest
	}
	if s.options.HealthBody || acceptsJSON(r.Header.Values("Accept")) {
		return replyWith(w, status, body)
	}
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(status)
	return nil
}

// acceptsJSON reports whether the values of Accept name application/json with a weight above 0. A wildcard does
// not count: curl and most libraries send one by default.
func acceptsJSON(accept []string) bool {
	for _, value := range accept {
		for part := range strings.SplitSeq(value, ",") {
			name, parameters, err := mime.ParseMediaType(part)
			if err != nil || name != typeJSON {
				continue
			}
			if weight, err := strconv.ParseFloat(parameters["q"], 64); err != nil || weight > 0 {
				return true
			}
		}
	}
	return false
}
