package registry

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/registry/internal/artifact"
	"github.com/nereid-serving/nereid/services/registry/internal/snapshot"
)

// tornReads is how often a load reads files that change under its hands.
const tornReads = 5

// patientLoad is how many times Arrive a load waits for objects that arrive.
const patientLoad = 10

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
		m, found, err := t.arrived(ctx, o.model, config)
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

// arrived reads a model when its objects, if it is in a store, are no longer
// arriving.
func (t *term) arrived(ctx context.Context, id infer.ModelID, config []byte) (m snapshot.Model, found bool, err error) {
	for limit := time.Now().Add(patientLoad * t.cfg.Arrive); ; {
		m, found, err = t.scanner.Model(ctx, id, config)
		if err != nil || !m.Arriving || time.Now().After(limit) {
			return m, found, err
		}
		lifecycle.Pause(ctx, t.cfg.Arrive/4)
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
	m, err := t.scanner.Directory(ctx, o.model, dir, config)
	if err != nil || m.Problem != "" || !t.cfg.ShareArtifacts {
		return m, err
	}
	if err := artifact.Share(ctx, t.buckets.objects, dir, bus.MaxArtifacts); err != nil {
		return m, err
	}
	here := m.URL
	m.URL = artifact.SharedURL(dir)
	for i := range m.Versions {
		v := &m.Versions[i]
		v.URL, v.Fingerprint = m.URL+strings.TrimPrefix(v.URL, here), ""
	}
	return m, nil
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
