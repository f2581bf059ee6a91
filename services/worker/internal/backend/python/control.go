package python

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/python/stub"
)

// control has a model loaded, unloaded or looked at for the model, and replies. It
// ends with the instance at the latest.
func (s *session) control(m *stub.Message, body *tensor.Buffer) error {
	if m.Asked == nil {
		return fmt.Errorf("the stub asks for %q of no model", m.Op)
	}
	c := s.in.model.backend.environment.Control
	model, version, config, dependents := m.Asked.Model, m.Asked.Version, m.Config, m.Dependents
	files, err := contents(m.Contents, body)
	if err != nil {
		return err
	}
	var act func(context.Context) (bool, error)
	switch m.Op {
	case "load":
		act = func(ctx context.Context) (bool, error) { return true, c.LoadModel(ctx, model, config, files) }
	case "unload":
		act = func(ctx context.Context) (bool, error) { return true, c.UnloadModel(ctx, model, dependents) }
	case "ready":
		act = func(context.Context) (bool, error) { return c.ModelReady(model, version) }
	default:
		return fmt.Errorf("the stub has models do %q", m.Op)
	}
	id := m.ID
	go func() {
		value, err := act(s.in.closing)
		s.reply(id, value, err)
	}()
	return nil
}

// contents are the files of a load, by their paths, in memory of their own.
func contents(list []stub.Content, body *tensor.Buffer) (map[string][]byte, error) {
	if len(list) == 0 {
		return nil, nil
	}
	var left []byte
	if body != nil {
		left = append(left, body.Bytes()...)
	}
	files := make(map[string][]byte, len(list))
	for _, f := range list {
		if f.Size > int64(len(left)) {
			return nil, errors.New("the files that the stub has loaded are longer than its message")
		}
		files[f.Path] = left[:f.Size:f.Size]
		left = left[f.Size:]
	}
	return files, nil
}

// reply answers what the stub has asked. What fails has its end in the reader.
func (s *session) reply(id uint64, value bool, err error) {
	header := strconv.AppendUint([]byte(`{"t":"reply","id":`), id, 10)
	if err != nil {
		header = stub.AppendText(append(header, `,"error":[`...), codeOf(err))
		header = stub.AppendText(append(header, ','), errs.Visible(err).Msg)
		header = append(header, ']')
	} else {
		header = strconv.AppendBool(append(header, `,"value":`...), value)
	}
	_ = s.stub.Send(append(header, '}'))
}
