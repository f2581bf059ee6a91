package registry

import (
	"context"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
	"github.com/nereid-serving/nereid/services/registry/internal/artifact"
	"github.com/nereid-serving/nereid/services/registry/internal/repo"
)

// loadUploadPeriods is how many times ObjectQuietPeriod a load waits for an upload.
const loadUploadPeriods = 10

// startReads starts what a step wants to be read, beside the loop.
func (l *leadership) startReads(ctx context.Context, effects core.Effects) {
	if s := effects.Scan; s != nil {
		l.background(ctx, func(ctx context.Context) core.Event { return l.scan(ctx, s) })
	}
	for _, r := range effects.Reads {
		given := l.calls[r.Caller] // nil for a step of an ensemble
		if given == nil {
			given = new(call)
		}
		l.background(ctx, func(ctx context.Context) core.Event {
			m, err := l.read(ctx, r, given)
			return core.WasRead{Operation: r.Operation, Model: m, Err: err}
		})
	}
}

// background has read run beside the loop, which takes the event that it returns.
func (l *leadership) background(ctx context.Context, read func(context.Context) core.Event) {
	l.readers.Go(func() { // ends with the leadership at the latest
		e := read(ctx)
		select {
		case l.found <- e:
		case <-ctx.Done():
		}
	})
}

// scan reads the repositories, and all of the models of ensembles' steps.
func (l *leadership) scan(ctx context.Context, s *core.Scan) core.Event {
	l.scanner.AddDigests(s.Digests)
	for {
		whole := s.Reads
		if s.All {
			whole = nil
		}
		snap, err := l.scanner.Scan(ctx, whole)
		if err != nil || !s.AddSteps(snap.Models) {
			return core.Scanned{Snapshot: snap, Err: err}
		}
	}
}

// keep reads a model with the configuration that overrides its repository's; ok is false if
// its files, or the configuration that is overridden, are not as they were.
func (l *leadership) keep(ctx context.Context, id infer.ModelID, kept *nereidv1.ModelValue) (m catalog.Model, ok bool) {
	config, err := prototext.Marshal(kept.GetConfig())
	if err != nil {
		return m, false
	}
	m, found, err := l.readUploaded(ctx, id, config)
	return m, err == nil && found && !m.Torn && m.Problem == "" && m.URL == kept.GetUrl() &&
		m.ReplacedConfig == kept.GetReplacedConfig() && core.SameModel(m, kept)
}

// read reads what a load asks for: the model as its repository has it, with another
// configuration, or made of files that came with the request. It runs beside the loop.
func (l *leadership) read(ctx context.Context, r core.Read, given *call) (catalog.Model, error) {
	if r.Retained != nil {
		if m, ok := l.keep(ctx, r.Model, r.Retained); ok {
			return m, nil
		}
	}
	config, err := overridden(r.Model.Name, given.config)
	if err != nil {
		return catalog.Model{}, err
	}
	if len(given.files) > 0 {
		return l.readFiles(ctx, given, config)
	}
	for attempt := 1; ; attempt++ {
		m, found, err := l.readUploaded(ctx, r.Model, config)
		switch {
		case err != nil:
			return m, core.NotPolled(r.Model.Name, err)
		case !found:
			return m, core.UnknownModel(r.Model.Name)
		case !m.Torn || attempt == tornReads:
			return m, nil
		}
		lifecycle.Pause(ctx, l.cfg.FileQuietPeriod/tornReads)
	}
}

// readUploaded reads a model when its objects, if it is in a store, are no longer
// arriving.
func (l *leadership) readUploaded(ctx context.Context, id infer.ModelID, config []byte) (m catalog.Model, found bool, err error) {
	for limit := time.Now().Add(loadUploadPeriods * l.cfg.ObjectQuietPeriod); ; {
		m, found, err = l.scanner.Model(ctx, id, config)
		if err != nil || !m.Uploading || time.Now().After(limit) {
			return m, found, err
		}
		lifecycle.Pause(ctx, l.cfg.ObjectQuietPeriod/4)
	}
}

func (l *leadership) readFiles(ctx context.Context, o *call, config []byte) (catalog.Model, error) {
	if l.cfg.Artifacts == "" {
		return catalog.Model{}, errs.New(errs.Unsupported, "this server takes no model files through the load API: put them into a model repository").WithModel(o.id.Name)
	}
	dir, err := artifact.Put(l.cfg.Artifacts, o.files)
	if err != nil {
		return catalog.Model{}, core.NotPolled(o.id.Name, err)
	}
	share := sync.OnceValue(func() error { return artifact.Share(ctx, l.buckets.objects, dir, bus.MaxArtifacts) })
	m, err := l.scanner.Directory(ctx, o.id, dir, config, l.askGiven(dir, share))
	if err == nil && m.Problem == "" && !l.cfg.AllowModelCode.On && runsCode(m.Config.GetBackend()) {
		err = codeRefused(o.id.Name, m.Config.GetBackend())
	}
	if err != nil || m.Problem != "" || !l.cfg.ShareArtifacts {
		return m, err
	}
	if err := share(); err != nil {
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

// runsCode reports whether a model's files may be executed. What the code of a
// Python-based backend does with them nobody knows.
func runsCode(backend string) bool {
	d, known := backends.Find(backend)
	return backend != "" && (d.RunsCode || !known)
}

// askGiven has workers complete the configuration of a model of given files, which
// they find in the store once they are shared. No code is run that the load
// refuses.
func (l *leadership) askGiven(dir string, share func() error) repo.Ask {
	ask := l.completer.asker()
	if ask == nil || !l.cfg.AllowModelCode.On {
		return nil
	}
	if !l.cfg.ShareArtifacts {
		return ask
	}
	return func(ctx context.Context, d control.Draft) ([]byte, error) {
		if err := share(); err != nil {
			return nil, err
		}
		here, there := d.ModelURL, artifact.SharedURL(dir)
		d.ModelURL, d.URL, d.Fingerprint = there, there+strings.TrimPrefix(d.URL, here), ""
		return ask(ctx, d)
	}
}

// codeRefused is the error of a load whose files a worker would execute.
func codeRefused(model, backend string) error {
	cause := errs.New(errs.Unsupported, "the files of a model with backend %s are programs, which the load API takes only with --allow-model-code: put them into a model repository", backend)
	return errs.Wrap(errs.Unsupported, cause, "failed to load '%s': %s", model, cause.Msg).WithModel(model)
}

// overridden writes a configuration that is given as JSON in the format of
// config.pbtxt; nil if none is.
func overridden(model, text string) ([]byte, error) {
	if text == "" {
		return nil, nil
	}
	config := new(inference.ModelConfig)
	if err := protojson.Unmarshal([]byte(text), config); err != nil {
		return nil, core.NotPolled(model, errs.Wrap(errs.ConfigInvalid, err, "Invalid config override: %v", err))
	}
	given, err := prototext.Marshal(config)
	if err != nil {
		return nil, core.NotPolled(model, errs.Wrap(errs.ConfigInvalid, err, "Invalid config override: %v", err))
	}
	return given, nil
}
