package reconcile

import (
	"slices"

	"github.com/nereid-serving/nereid/libs/infer"
)

// held is a version that the worker has, as far as decisions need it.
type held struct {
	ref   infer.ModelRef
	state infer.InstanceState // Loading, Ready, Unloading, or Unavailable if it failed
	// settled says that the version has been ready for long enough that all gateways know it.
	settled bool
	groups  []Group
	// resizing says that instances are being created or closed.
	resizing bool
}

// verb is what to do with a version.
type verb uint8

const (
	load    verb = iota + 1
	resize       // create missing instances, close surplus ones
	abandon      // cancel a running load or resize
	unload       // retire the instances, then close the model
	forget       // drop a version that failed
)

type step struct {
	do   verb
	ref  infer.ModelRef
	want want // for load and resize
}

// plan returns the steps that bring the worker to what is wanted of one model, and whether nothing is left to do or
// to wait for. Equal arguments produce equal steps.
func plan(wants []want, have []held) (steps []step, settled bool) {
	p := planner{wants: wants, have: have, settled: true}
	for _, w := range wants {
		p.bring(w)
	}
	for _, h := range have {
		p.shed(h)
	}
	return p.steps, p.settled
}

type planner struct {
	wants   []want
	have    []held
	steps   []step
	settled bool
}

func (p *planner) do(v verb, ref infer.ModelRef, w want) {
	p.steps = append(p.steps, step{v, ref, w})
	p.settled = false
}

// bring handles a version that is wanted.
func (p *planner) bring(w want) {
	h := p.find(w.ref)
	switch {
	case h == nil && w.past:
	case h == nil && w.version == nil: // not known yet
		p.settled = false
	case h == nil:
		p.do(load, w.ref, w)
	case h.state == infer.Loading, h.state == infer.Unloading, h.resizing:
		p.settled = false // the next step follows this one
	case h.state == infer.Ready && !slices.Equal(h.groups, w.groups):
		p.do(resize, w.ref, w)
	}
}

// shed handles a version that is not wanted.
func (p *planner) shed(h held) {
	if p.wanted(h.ref) {
		return
	}
	switch {
	case h.state == infer.Unavailable:
		p.steps = append(p.steps, step{do: forget, ref: h.ref}) // done at once
	case h.state == infer.Loading, h.resizing:
		p.do(abandon, h.ref, want{})
	case h.state == infer.Unloading:
		p.settled = false
	case p.stands(h.ref):
	case p.replaced(h.ref):
		p.do(unload, h.ref, want{})
	default:
		p.settled = false
	}
}

// successor returns the wanted generation of the same version, if any.
func (p *planner) successor(ref infer.ModelRef) *want {
	i := slices.IndexFunc(p.wants, func(w want) bool { return w.ref.ID() == ref.ID() && w.ref.Version == ref.Version })
	if i < 0 {
		return nil
	}
	return &p.wants[i]
}

// stands reports whether a generation continues to serve because its successor has failed.
func (p *planner) stands(ref infer.ModelRef) bool {
	next := p.successor(ref)
	if next == nil {
		return false
	}
	h := p.find(next.ref)
	return h != nil && h.state == infer.Unavailable
}

// replaced reports whether a generation has no successor, or one that serves.
func (p *planner) replaced(ref infer.ModelRef) bool {
	next := p.successor(ref)
	if next == nil {
		return true
	}
	h := p.find(next.ref)
	return h != nil && h.state == infer.Ready && h.settled
}

func (p *planner) find(ref infer.ModelRef) *held {
	i := slices.IndexFunc(p.have, func(h held) bool { return h.ref == ref })
	if i < 0 {
		return nil
	}
	return &p.have[i]
}

func (p *planner) wanted(ref infer.ModelRef) bool {
	return slices.ContainsFunc(p.wants, func(w want) bool { return w.ref == ref })
}
