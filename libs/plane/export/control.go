package export

import (
	"context"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

const (
	// maxFiles and maxFileBytes limit the files of one load.
	maxFiles     = 10_000
	maxFileBytes = 1 << 30
)

// question is a control that a model of this process waits for. The peer's mu guards the lease.
type question struct {
	model  string
	answer chan reply // of capacity one
	lease  Lease      // of its files
}

type reply struct {
	ready bool
	err   error
}

// end answers the question, which is then over. The caller holds mu.
func (q *question) end(ready bool, err error) {
	q.lease.Release()
	q.answer <- reply{ready, err}
}

// wait waits for an answer.
func (q *question) wait(ctx context.Context) (ready bool, err error) {
	select {
	case a := <-q.answer:
		return a.ready, a.err
	case <-ctx.Done():
		return false, errs.Wrap(errs.Canceled, context.Cause(ctx), "nobody waits for model '%s' to be loaded or unloaded", q.model)
	}
}

// LoadModel implements [infer.Control] through a gateway that has a stream.
func (c Caller) LoadModel(ctx context.Context, model, config string, files map[string][]byte) error {
	load := &codec.Control{Action: nereidv1.ControlAction_CONTROL_ACTION_LOAD, Model: model, Config: config}
	text, size := len(model)+len(config), 0
	for path, data := range files {
		text, size = text+len(path), size+len(data)
		load.Files = append(load.Files, infer.Tensor{
			Name: path, Datatype: tensor.Uint8, Shape: tensor.Shape{int64(len(data))}, Data: tensor.InHeap(data),
		})
	}
	defer load.Release()
	if len(files) > maxFiles || size > maxFileBytes || text > infer.MaxDescriptorBytes {
		return errs.New(errs.InvalidParameter,
			"a load of model '%s' brings %d files of %d bytes, with %d bytes of configuration and paths: want at most %d files, %d and %d bytes",
			model, len(files), size, text, maxFiles, maxFileBytes, infer.MaxDescriptorBytes).WithModel(model)
	}
	_, err := c.ask(ctx, load)
	return err
}

// UnloadModel implements [infer.Control] through a gateway that has a stream.
func (c Caller) UnloadModel(ctx context.Context, model string, dependents bool) error {
	_, err := c.ask(ctx, &codec.Control{Action: nereidv1.ControlAction_CONTROL_ACTION_UNLOAD, Model: model, Dependents: dependents})
	return err
}

// ModelReady implements [infer.Control] through a gateway that has a stream.
func (c Caller) ModelReady(model, version string) (bool, error) {
	return c.ask(context.Background(), &codec.Control{Action: nereidv1.ControlAction_CONTROL_ACTION_READY, Model: model, Version: version})
}

// ask makes a gateway do something, and waits for it. The control ends with its stream.
func (c Caller) ask(ctx context.Context, of *codec.Control) (ready bool, err error) {
	e := c.endpoint
	p, err := e.gateway(0, of.Model)
	if err != nil {
		return false, err
	}
	named := *of
	q := &question{model: of.Model, answer: make(chan reply, 1)}
	named.Files, q.lease = e.Exports.Lend(of.Files, e.Identity().Epoch)
	number, s, err := p.question(q, &named)
	if err != nil {
		q.lease.Release()
		return false, unsent(err, of.Model)
	}
	stop := context.AfterFunc(ctx, func() {
		_ = s.link.Write(func(w *codec.Writer) error { return w.CallCancel(number) }) // otherwise the stream has ended, and the control with it
	})
	defer stop()
	return q.wait(ctx)
}

func (p *peer) question(q *question, of *codec.Control) (number uint64, s *stream, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s, number, err = p.nextCall(of.Model); err != nil {
		return 0, nil, err
	}
	if err := s.link.Write(func(w *codec.Writer) error { return w.Control(number, of) }); err != nil {
		return 0, nil, err
	}
	s.calls.asked[number] = q
	return number, s, nil
}

// controlled handles the end of a control. The caller holds mu.
func (p *peer) controlled(s *stream, number uint64, ready bool, failure error) error {
	q := s.calls.asked[number]
	if q == nil {
		return errs.New(errs.PeerMalformed, "the gateway ends control %d, which is not under way", number)
	}
	delete(s.calls.asked, number)
	q.end(ready, failure)
	return nil
}

// control does what a model of the peer asks for, in a goroutine of its own, until the stream ends or nobody waits
// for it.
func (p *peer) control(s *stream, number uint64, of *codec.Control) error {
	if p.endpoint.config.Control == nil {
		of.Release()
		return errs.New(errs.PeerMalformed, "the peer has a process control models that is no gateway")
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.mu.Lock()
	err := p.room(s, number)
	if err == nil {
		s.calls.controls[number] = cancel
	}
	p.mu.Unlock()
	if err != nil {
		cancel()
		of.Release()
		return err
	}
	go func() {
		defer cancel()
		ready, err := p.act(ctx, of)
		p.mu.Lock()
		defer p.mu.Unlock()
		if _, open := s.calls.controls[number]; open {
			delete(s.calls.controls, number)
			_ = s.link.Write(func(w *codec.Writer) error { return w.ControlDone(number, ready, err) }) // otherwise the stream has ended
		}
	}()
	return nil
}

// act executes a control, and takes ownership of its files.
func (p *peer) act(ctx context.Context, of *codec.Control) (ready bool, err error) {
	defer of.Release()
	control := p.endpoint.config.Control
	switch of.Action {
	case nereidv1.ControlAction_CONTROL_ACTION_LOAD:
		files, err := p.files(ctx, of)
		if err != nil {
			return false, err
		}
		return false, control.LoadModel(ctx, of.Model, of.Config, files)
	case nereidv1.ControlAction_CONTROL_ACTION_UNLOAD:
		return false, control.UnloadModel(ctx, of.Model, of.Dependents)
	case nereidv1.ControlAction_CONTROL_ACTION_READY:
		return control.ModelReady(of.Model, of.Version)
	}
	return false, errs.New(errs.Unsupported, "this release of the gateway does not know control %d of models: upgrade it", of.Action)
}

// files fetches the files of a load, by their paths.
func (p *peer) files(ctx context.Context, of *codec.Control) (map[string][]byte, error) {
	if len(of.Files) == 0 {
		return nil, nil
	}
	size := int64(0)
	for i := range of.Files {
		size += min(of.Files[i].Data.Length, maxFileBytes+1)
	}
	if len(of.Files) > maxFiles || size > maxFileBytes {
		return nil, errs.New(errs.InvalidParameter, "a load of model '%s' brings %d files of %d bytes: want at most %d of %d",
			of.Model, len(of.Files), size, maxFiles, maxFileBytes).WithModel(of.Model)
	}
	if err := p.bring(of.Files, ctx.Done()); err != nil {
		return nil, err
	}
	files := make(map[string][]byte, len(of.Files))
	for i := range of.Files {
		data, err := of.Files[i].Data.Bytes()
		if err != nil {
			return nil, err
		}
		files[of.Files[i].Name] = append([]byte{}, data...)
	}
	return files, nil
}
