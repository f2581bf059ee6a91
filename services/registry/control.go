package registry

import (
	"context"
	"strings"
	"sync"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/registry/core"
)

// Load loads a model, or loads it anew; with namespacing all models of its
// name. It returns when every gateway and scheduler knows of it or it has
// failed; a failure leaves what served before in service. config, if it is not
// empty, is the configuration as JSON, used in place of the repository's;
// files, if there are any, by their paths within the model's directory, are
// used in place of the whole directory. Files last until the next load; a
// configuration also through loads without one, while the repository's files and
// configuration stay as they are and no other load fails. The caller must not
// change files afterwards. A load waits for those before it on the same model.
//
// Reasons are model_control_disabled unless models are under explicit control,
// load_unknown_model, load_conflict, load_failed, model_ambiguous for files of
// a name that several models have, and those of bad arguments.
// state_unavailable is that another replica leads, or none for half a minute.
// When ctx ends first its error is returned, and the load goes on.
func (r *Registry) Load(ctx context.Context, model, config string, files map[string][]byte) error {
	if err := r.controllable(model); err != nil {
		return err
	}
	if !isModelName(model) {
		return core.UnknownModel(model)
	}
	if len(files) > 0 && config == "" {
		return core.NotPolled(model, errs.New(errs.InvalidParameter, "Load parameter 'config' must be specified for model file override"))
	}
	ids, err := r.loadable(ctx, model, len(files) > 0)
	if err != nil {
		return err
	}
	return each(ids, func(id infer.ModelID) error {
		return r.operate(ctx, call{load: true, id: id, config: config, files: files})
	})
}

// loadable gives the models that a load of a name means: with namespacing all
// that the repositories have of it, or the one for which files are given.
func (r *Registry) loadable(ctx context.Context, name string, given bool) ([]infer.ModelID, error) {
	if !r.cfg.Namespacing.On {
		return []infer.ModelID{{Name: name}}, nil
	}
	ids, err := r.scanner.Named(ctx, name)
	switch {
	case err != nil:
		return nil, core.NotPolled(name, err)
	case len(ids) == 0:
		return []infer.ModelID{{Name: name}}, nil // files need no repository
	case given && len(ids) > 1:
		return nil, errs.New(errs.ModelAmbiguous,
			"There are %d identifiers of model '%s' in global map, model namespace must be provided to resolve ambiguity.", len(ids), name).WithModel(name)
	}
	return ids, nil
}

// unloadable gives the models that an unload of a name means, whether there
// are such or not.
func (r *Registry) unloadable(name string) []infer.ModelID {
	ids := []infer.ModelID{{Name: name}}
	if r.cfg.Namespacing.On {
		for _, root := range r.roots {
			ids = append(ids, infer.ModelID{Namespace: root, Name: name})
		}
	}
	return ids
}

// each does something to all models at once and gives the first error in
// their order.
func each(ids []infer.ModelID, do func(infer.ModelID) error) error {
	errors := make([]error, len(ids))
	var wait sync.WaitGroup
	for i, id := range ids {
		wait.Go(func() { errors[i] = do(id) })
	}
	wait.Wait()
	for _, err := range errors {
		if err != nil {
			return err
		}
	}
	return nil
}

// Unload takes a model, with namespacing all models of its name, out of service
// and returns when no gateway sends it
// requests any more; those in flight are finished. A model that is not loaded
// is no error. With dependents an ensemble takes those of its steps' models with it
// that were loaded for ensembles alone and that no other uses.
// Reasons are those of [Registry.Load].
func (r *Registry) Unload(ctx context.Context, model string, dependents bool) error {
	if err := r.controllable(model); err != nil || !isModelName(model) {
		return err
	}
	return each(r.unloadable(model), func(id infer.ModelID) error {
		return r.operate(ctx, call{id: id, dependents: dependents})
	})
}

func (r *Registry) controllable(model string) error {
	if r.cfg.Control != ControlExplicit {
		return errs.New(errs.ModelControlDisabled, "explicit model load / unload is not allowed if polling is enabled").WithModel(model)
	}
	if strings.TrimSpace(model) == "" {
		return errs.New(errs.InvalidParameter, "Model name cannot be empty. Please enter a valid name to deploy.")
	}
	return nil
}

// isModelName reports whether a model's directory can have the name; with any other there is
// no model.
func isModelName(name string) bool {
	return name != "." && name != ".." && !strings.ContainsAny(name, "/\\\x00")
}

// operate has the leader's loop do an operation, if this replica leads. A
// leadership that is lost meanwhile comes back soon: then the operation starts
// again, since its first part did no harm.
func (r *Registry) operate(ctx context.Context, o call) error {
	for {
		term := r.leader.wait(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case term == nil:
			return errs.New(errs.StateUnavailable, "no registry leads to work on model '%s': look at the repository index, and ask again in a moment", o.id).WithModel(o.id.Name)
		}
		attempt := o // each leadership has its own to write to
		attempt.done = make(chan error, 1)
		if answered, err := term.do(ctx, &attempt); answered {
			return err
		}
	}
}

// do hands an operation to the loop and waits for its outcome. There is none
// if the leadership ends before.
func (l *leadership) do(ctx context.Context, o *call) (answered bool, err error) {
	select {
	case l.requests <- o:
	case <-l.ended:
		return false, nil
	case <-ctx.Done():
		return true, context.Cause(ctx)
	}
	select {
	case err = <-o.done:
		return true, err
	case <-ctx.Done():
		return true, context.Cause(ctx)
	case <-l.ended:
	}
	select {
	case err = <-o.done: // the last that the leadership did
		return true, err
	default:
		return false, nil
	}
}
