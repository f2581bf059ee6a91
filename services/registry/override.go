package registry

import (
	"context"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/registry/internal/artifact"
	"github.com/nereid-serving/nereid/services/registry/internal/snapshot"
)

// tornReads is how often a load reads files that change under its hands.
const tornReads = 5

// read finds what a load asks for: the model as its repository has it, with
// another configuration, or made of files that came with the request. It runs
// beside the loop.
func (t *term) read(ctx context.Context, o *operation) (snapshot.Model, error) {
	config, err := overridden(o.model.Name, o.config)
	if err != nil {
		return snapshot.Model{}, err
	}
	if len(o.files) > 0 {
		return t.readFiles(ctx, o, config)
	}
	for attempt := 1; ; attempt++ {
		m, found, err := t.scanner.Model(ctx, o.model, config)
		switch {
		case err != nil:
			return m, notPolled(o.model.Name, err)
		case !found:
			return m, unknownModel(o.model.Name)
		case !m.Torn || attempt == tornReads:
			return m, nil
		}
		lifecycle.Pause(ctx, t.cfg.Settle/tornReads)
	}
}

func (t *term) readFiles(ctx context.Context, o *operation, config []byte) (snapshot.Model, error) {
	if t.cfg.Artifacts == "" {
		return snapshot.Model{}, errs.New(errs.Unsupported, "this server takes no model files through the load API: put them into a model repository").WithModel(o.model.Name)
	}
	dir, err := artifact.Put(t.cfg.Artifacts, o.files)
	if err != nil {
		return snapshot.Model{}, err
	}
	return t.scanner.Directory(ctx, o.model, dir, config)
}

// overridden writes a configuration that is given as JSON in the format of
// config.pbtxt; nil if none is.
func overridden(model, text string) ([]byte, error) {
	if text == "" {
		return nil, nil
	}
	config := new(inference.ModelConfig)
	if err := protojson.Unmarshal([]byte(text), config); err != nil {
		return nil, notPolled(model, errs.Wrap(errs.ConfigInvalid, err, "Invalid config override: %v", err))
	}
	given, err := prototext.Marshal(config)
	if err != nil {
		return nil, notPolled(model, errs.Wrap(errs.ConfigInvalid, err, "Invalid config override: %v", err))
	}
	return given, nil
}
