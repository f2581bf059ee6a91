package worker

import (
	"context"

	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/source"
)

var _ control.Completer = (*Worker)(nil)

// Complete lets a model's own code complete its configuration; the model is not loaded. Complete may be called before
// and during Run. It fails with draining once the worker stops, and with unsupported if the worker lacks the backend.
// For other errors see [control.Completer].
func (w *Worker) Complete(ctx context.Context, d control.Draft) (completed []byte, err error) {
	config, err := modelconfig.FromJSON(d.Config)
	if err != nil {
		return nil, err
	}
	err = w.engines.use(ctx, func(ctx context.Context) error {
		if !w.engines.has(config.Backend) {
			return errs.New(errs.Unsupported, "%s", modelconfig.UnknownBackend(config.Backend, names(w.engines.based))).WithModel(config.Name)
		}
		b, err := w.engines.backend(config.Backend)
		if err != nil {
			return err
		}
		completer, ok := b.(backend.Completer)
		if !ok {
			return errs.New(errs.LoadFailed, "models of the backend %s do not complete their own configurations", config.Backend).WithModel(config.Name)
		}
		files, err := w.source().Fetch(ctx, source.Content{ModelURL: d.ModelURL, URL: d.URL, Digest: d.Digest, Fingerprint: d.Fingerprint}, func(source.Progress) {})
		if err != nil {
			return err
		}
		defer files.Close() // it was only read
		completed, err = completer.Complete(ctx, backend.Version{Ref: d.Model, Config: config, ModelDir: files.ModelDir(), Dir: files.Dir()})
		if err != nil {
			return err
		}
		return files.Verify(ctx)
	})
	return completed, err
}

// source returns the source of models' files.
func (w *Worker) source() source.Source {
	return source.ByURL{Local: source.Local{}, Remote: w.fetcher}
}

// RegisterControl registers the service for the registry's calls: see [control.RegisterWorker].
func (w *Worker) RegisterControl(s grpc.ServiceRegistrar) {
	control.RegisterWorker(s, w, func(err error) { w.deps.Log.Error("call failed", obs.Err(err)...) })
}
