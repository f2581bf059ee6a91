package rest

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelfiles"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// filePrefix starts the keys of load parameters that carry files.
const filePrefix = "file:"

func (s *server) load(w http.ResponseWriter, r *http.Request) error {
	model, parameters, err := s.controlled(r)
	if err != nil {
		return err
	}
	request, err := loadRequest(model, parameters)
	if err != nil {
		return err
	}
	if err := s.gateway.LoadModel(r.Context(), request); err != nil {
		return err
	}
	write(w, http.StatusOK, nil)
	return nil
}

func (s *server) unload(c *call) error {
	model, parameters, err := s.controlled(c.http)
	if err != nil {
		return err
	}
	dependents := false
	if raw, ok := parameters["unload_dependents"]; ok {
		if err := json.Unmarshal(raw, &dependents); err != nil {
			return errs.Wrap(errs.InvalidParameter, err, "Invalid value for 'unload_dependents': expected a boolean").WithModel(model)
		}
	}
	if dependents {
		if err := c.PermitAll(); err != nil {
			return err
		}
	}
	if err := s.gateway.UnloadModel(c.Context(), model, dependents); err != nil {
		return err
	}
	write(c.writer, http.StatusOK, nil)
	return nil
}

// controlled reads the model and the parameters of a load or unload.
func (s *server) controlled(r *http.Request) (model string, given parameters, err error) {
	if r.PathValue("repository") != "" {
		return "", nil, errs.New(errs.Unsupported, "'repository_name' specification is not supported")
	}
	if model, _, err = target(r); err != nil {
		return "", nil, err
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, s.options.MaxInput+1))
	switch {
	case err != nil:
		return "", nil, cutOff(err)
	case int64(len(data)) > s.options.MaxInput:
		return "", nil, errs.New(errs.InputTooLarge, "request JSON size exceeds the maximum allowed value of %d bytes. "+
			"Use --http-max-input-size to increase the limit.", s.options.MaxInput)
	case len(data) == 0:
		return model, nil, nil
	}
	var body struct {
		Parameters parameters `json:"parameters"`
	}
	if err := unmarshalObject(data, &body); err != nil {
		return "", nil, err
	}
	return model, body.Parameters, nil
}

// parameters are the parameters of a load or unload, bounded in number.
type parameters map[string]json.RawMessage

// UnmarshalJSON implements json.Unmarshaler.
func (p *parameters) UnmarshalJSON(data []byte) error {
	if members(data) > core.MaxControlParameters {
		return modelfiles.TooManyLoadFiles("")
	}
	return json.Unmarshal(data, (*map[string]json.RawMessage)(p))
}

// members counts the members of an object in valid JSON.
func members(data []byte) (n int) {
	depth, text := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case text && c == '\\':
			i++
		case c == '"':
			text = !text
		case text:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		case c == ':' && depth == 1:
			n++
		}
	}
	return n
}

func loadRequest(model string, parameters map[string]json.RawMessage) (core.LoadRequest, error) {
	request := core.LoadRequest{Model: model}
	for key, raw := range parameters {
		path, isFile := strings.CutPrefix(key, filePrefix)
		if key != "config" && !isFile {
			return request, errs.New(errs.InvalidParameter, "unrecognized load parameter '%s'.", key).WithModel(model)
		}
		var text string
		if err := json.Unmarshal(raw, &text); err != nil {
			return request, errs.Wrap(errs.InvalidParameter, err, "invalid value type for load parameter '%s', expected a string.", key).WithModel(model)
		}
		if !isFile {
			request.Config, request.HasConfig = text, true
			continue
		}
		data, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return request, errs.Wrap(errs.InvalidParameter, err, "load parameter '%s' is not base64: %v", key, err).WithModel(model)
		}
		if request.Files == nil {
			request.Files = make(map[string][]byte)
		}
		request.Files[path] = data
	}
	return request, nil
}
