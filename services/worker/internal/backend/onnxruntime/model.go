//go:build cgo

package onnxruntime

import (
	"context"
	"fmt"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/cores"
)

// model is a loaded model version: one session for all its instances.
type model struct {
	backend     *Backend
	version     backend.Version
	session     *session
	gpu         *gpu // nil on CPUs
	inputs      []tensorBinding
	outputs     []tensorBinding
	batchInputs []batchInput
	// cores is where the session's threads and its runs stay.
	cores cores.Set
}

// Load makes a session of the version's file and checks the configuration
// against it. Errors have the reason load_failed and name the file.
func (b *Backend) Load(ctx context.Context, v backend.Version) (backend.Model, error) {
	if ctx.Err() != nil {
		return nil, givenUp(ctx, v)
	}
	m := &model{backend: b, version: v, gpu: b.deviceOf(v)}
	capability, err := m.capability()
	if err != nil {
		return nil, loadFailed(v, v.Dir, err)
	}
	file, err := modelFile(v, capability)
	if err != nil {
		return nil, loadFailed(v, v.Dir, err)
	}
	if v.Config.Backend == backends.Plans {
		plan, err := b.newPlanModel(v, file)
		if err != nil {
			return nil, loadFailed(v, file, err)
		}
		defer plan.close() // the session has read it
		file = plan.file
	}
	if m.cores, err = b.options.coresOf(v.Config, v.Device); err != nil {
		return nil, loadFailed(v, file, err)
	}
	// Threads that the session starts inherit where they stay.
	m.cores.Run(func() { m.session, err = b.newSession(ctx, file, v, m.cores) })
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, givenUp(ctx, v)
	case errs.Of(err) == errs.DeviceMemory:
		return nil, loadFailed(v, file, err)
	case m.gpu != nil && outOfMemory(err):
		return nil, loadFailed(v, file, m.gpu.explain(err, 0, nil))
	case outOfMemory(err):
		return nil, loadFailed(v, file, errs.Wrap(errs.DeviceMemory, err, "the machine has no memory for it: %v: unload models there, or add a worker", err))
	case err != nil:
		return nil, loadFailed(v, file, b.explain(file, err))
	}
	if err := m.connect(); err != nil {
		_ = m.Close()
		return nil, loadFailed(v, file, err)
	}
	return m, nil
}

// capability is the GPU's compute capability, where the model has files by that.
func (m *model) capability() (string, error) {
	if m.gpu == nil || len(m.version.Config.CapabilityFilenames) == 0 {
		return "", nil
	}
	if err := m.gpu.cuda.open(m.gpu.ordinal); err != nil {
		return "", err
	}
	return m.gpu.capability()
}

func givenUp(ctx context.Context, v backend.Version) error {
	return errs.Wrap(errs.LoadFailed, ctx.Err(), "load of model '%s' was given up", v.Ref.Name).WithModel(v.Ref.Name)
}

// loadFailed keeps the reasons that say nothing of the model, so that the registry has it
// loaded another time.
func loadFailed(v backend.Version, file string, err error) error {
	reason := errs.LoadFailed
	if of := errs.Of(err); of == errs.DeviceMemory || of == errs.DeviceFailed {
		reason = of
	}
	return errs.Wrap(reason, err, "load model '%s' version %d from %s: %v", v.Ref.Name, v.Ref.Version, file, err).
		WithModel(v.Ref.Name)
}

// connect matches the configuration with the session.
func (m *model) connect() error {
	d, err := m.backend.engine.declaration(m.session)
	if err != nil {
		return err
	}
	c := m.version.Config
	if err := validate(c, d); err != nil {
		return err
	}
	all := append(append([]sessionIO(nil), d.inputs...), d.initializers...)
	for i := range c.Inputs {
		p := newBinding(c, &c.Inputs[i], *findIO(all, c.Inputs[i].Name))
		p.padding = c.Padding.Input(p.io.Name)
		m.inputs = append(m.inputs, p)
	}
	m.batchInputs = newBatchInputs(c)
	for i := range c.Outputs {
		p := newBinding(c, &c.Outputs[i], *findIO(d.outputs, c.Outputs[i].Name))
		if p.scatter = scatteredBy(c, p.io.Name); p.scatter >= 0 {
			p.rowBytes = -1
		}
		p.trims = trimsOf(c, p.io.Name)
		m.outputs = append(m.outputs, p)
	}
	return nil
}

// NewInstance makes an instance. The session is shared, so it
// costs its arena and a little state.
func (m *model) NewInstance(_ context.Context, spec backend.InstanceSpec) (backend.Instance, error) {
	c, err := newCall(m.backend.engine, m.session.native, len(m.inputs)+len(m.batchInputs), len(m.outputs))
	if err != nil {
		return nil, loadFailed(m.version, spec.Name, err)
	}
	if value := shrinking(m.version.Config.Parameters[shrinkage], m.version.Device); value != "" {
		if err := c.configure(shrinkage, value); err != nil {
			c.close()
			return nil, loadFailed(m.version, spec.Name, err)
		}
	}
	return newInstance(m, c), nil
}

// Close destroys the session and frees what belongs to the model.
func (m *model) Close() error {
	for _, list := range [][]tensorBinding{m.inputs, m.outputs} {
		for i := range list {
			freeName(list[i].name)
		}
	}
	for i := range m.batchInputs {
		freeName(m.batchInputs[i].name)
	}
	m.inputs, m.outputs, m.batchInputs = nil, nil, nil
	if err := m.session.close(); err != nil {
		return fmt.Errorf("close model '%s': %w", m.version.Ref.Name, err)
	}
	m.backend.trimmer.ask()
	return nil
}
