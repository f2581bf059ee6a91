package rest

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/jsoninfer"
)

// logSettings responds with the settings of the log.
func (s *server) logSettings(w http.ResponseWriter, _ *http.Request) error {
	settings, err := s.gateway.LogSettings()
	if err != nil {
		return err
	}
	return replyLog(w, settings)
}

// changeLog changes log settings. Unlike Triton it changes none of them if one is invalid.
func (s *server) changeLog(c *call) error {
	document, err := readControl(c.http.Body)
	if err != nil {
		return err
	}
	if err := jsoninfer.CheckSyntax(document); err != nil {
		return err
	}
	var request logRequest
	if err := unmarshalObject(document, &request); err != nil {
		return err
	}
	changes, err := request.changes()
	if err != nil {
		return err
	}
	if changes.Format != nil && !core.LogFormat(*changes.Format) {
		// The reason maps to status 400, but this endpoint responds with 503.
		e := s.path.Visible(c.Method, errs.New(errs.InvalidParameter, "invalid argument for --log_format, got: %s", *changes.Format))
		writeError(c.writer, http.StatusServiceUnavailable, e, "")
		return nil
	}
	settings, err := s.gateway.ChangeLog(c.http.Context(), changes)
	if err != nil {
		return err
	}
	return replyLog(c.writer, settings)
}

func replyLog(w http.ResponseWriter, s core.LogSettings) error {
	return reply(w, struct {
		File    string `json:"log_file"`
		Info    bool   `json:"log_info"`
		Warning bool   `json:"log_warning"`
		Error   bool   `json:"log_error"`
		Verbose uint32 `json:"log_verbose_level"`
		Format  string `json:"log_format"`
	}{s.File, s.Info, s.Warning, s.Error, s.Verbose, s.Format})
}

// logRequest has the members of a change. A null member counts as absent.
type logRequest struct {
	File    json.RawMessage `json:"log_file"`
	Info    json.RawMessage `json:"log_info"`
	Warning json.RawMessage `json:"log_warning"`
	Error   json.RawMessage `json:"log_error"`
	Verbose json.RawMessage `json:"log_verbose_level"`
	Format  json.RawMessage `json:"log_format"`
}

func given(value json.RawMessage) bool { return len(value) > 0 && string(value) != "null" }

// changes reads the members, in Triton's order and with its error texts.
func (r *logRequest) changes() (c core.LogChanges, err error) {
	if given(r.File) {
		return c, core.LogFileFixed()
	}
	for _, flag := range []struct {
		value json.RawMessage
		to    **bool
	}{{r.Info, &c.Info}, {r.Warning, &c.Warning}, {r.Error, &c.Error}} {
		if !given(flag.value) {
			continue
		}
		on := string(flag.value) == "true"
		if !on && string(flag.value) != "false" {
			return c, errs.New(errs.InvalidJSON, "attempt to access JSON non-boolean as boolean")
		}
		*flag.to = &on
	}
	if given(r.Verbose) {
		level, err := strconv.ParseUint(string(r.Verbose), 10, 32)
		if err != nil {
			return c, errs.Wrap(errs.InvalidJSON, err, "attempt to access JSON non-unsigned-integer as unsigned-integer")
		}
		verbose := uint32(level) //nolint:gosec // 32 bits were asked for
		c.Verbose = &verbose
	}
	if given(r.Format) {
		if err := json.Unmarshal(r.Format, &c.Format); err != nil {
			return c, errs.Wrap(errs.InvalidJSON, err, "attempt to access JSON non-string as string")
		}
	}
	return c, nil
}
