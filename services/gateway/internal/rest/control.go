package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/jsoninfer"
)

// maxControl bounds the body of a request that is neither an inference nor a load, in bytes.
const maxControl = 64 << 10

func (s *server) metadata(w http.ResponseWriter, _ *http.Request) error {
	info := s.gateway.Server()
	return reply(w, struct {
		Name       string   `json:"name"`
		Version    string   `json:"version"`
		Extensions []string `json:"extensions"`
	}{info.Name, info.Version, orEmpty(info.Extensions)})
}

type tensorJSON struct {
	Name     string  `json:"name"`
	Datatype string  `json:"datatype"`
	Shape    []int64 `json:"shape"`
}

func (s *server) modelMetadata(w http.ResponseWriter, r *http.Request) error {
	model, version, err := target(r)
	if err != nil {
		return err
	}
	m, err := s.gateway.Metadata(model, version)
	if err != nil {
		return err
	}
	return reply(w, struct {
		Name     string       `json:"name"`
		Versions []string     `json:"versions"`
		Platform string       `json:"platform"`
		Inputs   []tensorJSON `json:"inputs"`
		Outputs  []tensorJSON `json:"outputs"`
	}{m.Name, orEmpty(m.Versions), m.Platform, tensors(m.Inputs), tensors(m.Outputs)})
}

func tensors(list []core.TensorMetadata) []tensorJSON {
	out := make([]tensorJSON, len(list))
	for i, t := range list {
		out[i] = tensorJSON{t.Name, t.Datatype, orEmpty(t.Shape)}
	}
	return out
}

func (s *server) modelConfig(w http.ResponseWriter, r *http.Request) error {
	model, version, err := target(r)
	if err != nil {
		return err
	}
	c, err := s.gateway.ModelConfig(model, version)
	if err != nil {
		return err
	}
	write(w, http.StatusOK, modelconfig.JSON(c.Proto()))
	return nil
}

func (s *server) index(c *call) error {
	readyOnly, err := indexFilter(c.http.Body)
	if err != nil {
		return err
	}
	type entry struct {
		Name    string `json:"name"`
		Version string `json:"version,omitempty"`
		State   string `json:"state,omitempty"`
		Reason  string `json:"reason,omitempty"`
	}
	list := []entry{}
	for _, e := range s.gateway.Index(readyOnly) {
		if c.Sees(e.Name) {
			list = append(list, entry{e.Name, e.Version, e.State, e.Reason})
		}
	}
	return reply(c.writer, list)
}

// indexFilter reads the optional body of the repository index.
func indexFilter(body io.Reader) (readyOnly bool, err error) {
	data, err := readControl(body)
	if err != nil || len(data) == 0 {
		return false, err
	}
	var request struct {
		Ready json.RawMessage `json:"ready"`
	}
	if err := unmarshalObject(data, &request); err != nil {
		return false, err
	}
	switch string(request.Ready) {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	}
	return false, errs.New(errs.InvalidParameter, "Invalid value for 'ready': expected a boolean")
}

// readControl reads a body of at most maxControl bytes.
func readControl(body io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(body, maxControl+1))
	switch {
	case err != nil:
		return nil, cutOff(err)
	case len(data) > maxControl:
		return nil, errs.New(errs.BodyTooLarge, "the body of this request may have at most %d bytes", maxControl)
	}
	return data, nil
}

// unmarshalObject decodes the members of an object. As in Triton, a document of another type has no members.
func unmarshalObject(document []byte, members any) error {
	text := bytes.TrimLeft(document, " \t\r\n")
	if len(text) > 0 && text[0] != '{' && json.Valid(text) {
		return nil
	}
	if err := json.Unmarshal(document, members); err != nil {
		return badJSON(document, err)
	}
	return nil
}

// badJSON returns the error for a document that encoding/json refused with err.
func badJSON(document []byte, err error) error {
	if errs.Classified(err) {
		return err
	}
	if wrong := jsoninfer.CheckSyntax(document); wrong != nil {
		return wrong
	}
	var syntax *json.SyntaxError // for example NaN, which Triton's parser accepts
	if errors.As(err, &syntax) {
		return errs.Wrap(errs.InvalidJSON, err, "failed to parse the request JSON buffer: %s at %d", syntax.Error(), syntax.Offset)
	}
	return errs.Wrap(errs.InvalidJSON, err, "failed to parse the request JSON buffer: an object is expected")
}

// orEmpty makes JSON say [] instead of null.
func orEmpty[S ~[]E, E any](list S) S {
	if list == nil {
		return S{}
	}
	return list
}
