package registry

import (
	"context"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Load loads a model, or loads it anew, and returns when every gateway and
// scheduler knows of it or it has failed; a failure leaves what served before
// in service. config, if it is not empty, is the configuration as JSON, used
// in place of the repository's; files, if there are any, by their paths within
// the model's directory, are used in place of the whole directory. Both last
// until the next load. The caller must not change files afterwards.
//
// Reasons are model_control_disabled unless models are under explicit control,
// load_unknown_model, load_conflict, load_failed and those of bad arguments.
// When ctx ends first its error is returned, and the load goes on.
func (r *Registry) Load(ctx context.Context, model, config string, files map[string][]byte) error {
	if err := r.controllable(model); err != nil {
		return err
	}
	if len(files) > 0 && config == "" {
		return errs.New(errs.InvalidParameter, "Load parameter 'config' must be specified for model file override").WithModel(model)
	}
	return r.operate(ctx, &operation{verb: verbLoad, model: model, config: config, files: files})
}

// Unload takes a model out of service and returns when no gateway sends it
// requests any more; those in flight are finished. A model that is not loaded
// is no error. No model depends on another yet, so that the flag for dependents says nothing.
// Reasons are those of [Registry.Load].
func (r *Registry) Unload(ctx context.Context, model string, _ bool) error {
	if err := r.controllable(model); err != nil {
		return err
	}
	return r.operate(ctx, &operation{verb: verbUnload, model: model})
}

func (r *Registry) controllable(model string) error {
	if r.cfg.Control != ControlExplicit {
		return errs.New(errs.ModelControlDisabled, "explicit model load / unload is not allowed if polling is enabled").WithModel(model)
	}
	return checkName(model)
}

// checkName refuses names that no model directory can have.
func checkName(name string) error {
	switch {
	case strings.TrimSpace(name) == "":
		return errs.New(errs.InvalidParameter, "Model name cannot be empty. Please enter a valid name to deploy.")
	case name == "." || name == ".." || strings.ContainsAny(name, "/\\\x00"):
		return errs.New(errs.InvalidParameter, "model name must not contain path traversal characters")
	}
	return nil
}

// operate hands an operation to the leader's loop, if this replica leads.
func (r *Registry) operate(ctx context.Context, o *operation) error {
	o.done = make(chan error, 1)
	term := r.term.Load()
	if term == nil {
		return errs.New(errs.StateUnavailable, "no registry leads yet: ask again in a moment").WithModel(o.model)
	}
	select {
	case term.asked <- o:
	case <-term.over:
		return termOver(o)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-o.done:
		return err
	case <-term.over:
		return termOver(o)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// termOver is the outcome when a term ends under an operation, which may have
// its answer by then.
func termOver(o *operation) error {
	select {
	case err := <-o.done:
		return err
	default:
	}
	return errs.New(errs.StateUnavailable, "the registry lost its lead while it worked on model '%s': look at the repository index, and ask again", o.model).WithModel(o.model)
}
