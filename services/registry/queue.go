package registry

import (
	"maps"
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// maxQueued bounds the operations that wait for another on the same model.
const maxQueued = 64

// operations are those of callers that wait: one of each model runs, and the others wait in
// the order in which they came. It is owned by the leadership's loop.
type operations struct {
	running map[string]*operation // by the model's key
	queued  map[string][]*operation
}

func newOperations() operations {
	return operations{running: make(map[string]*operation), queued: make(map[string][]*operation)}
}

// keys are those of the models with a running operation, in order.
func (s operations) keys() []string { return slices.Sorted(maps.Keys(s.running)) }

// add runs an operation or, while another runs on the model, queues it.
func (s operations) add(o *operation) (runs bool, err error) {
	key := o.key()
	if s.running[key] == nil {
		s.running[key] = o
		return true, nil
	}
	if len(s.queued[key]) == maxQueued {
		return false, errs.New(errs.LoadConflict, "a related model '%s' to a load/unload request is currently loading or unloading", o.id).WithModel(o.id.Name)
	}
	s.queued[key] = append(s.queued[key], o)
	return false, nil
}

// end ends the running operation of a model and returns the next one, which runs; nil if
// none waits.
func (s operations) end(key string) *operation {
	delete(s.running, key)
	waiting := s.queued[key]
	if len(waiting) == 0 {
		return nil
	}
	if s.queued[key] = waiting[1:]; len(waiting) == 1 {
		delete(s.queued, key)
	}
	s.running[key] = waiting[0]
	return waiting[0]
}

// unloads reports whether an unload is to be applied.
func (s operations) unloads() bool {
	for _, o := range s.running {
		if o.kind == operationUnload && !o.written {
			return true
		}
	}
	return false
}

// awaits reports whether the operations on an ensemble wait, through its steps, for the one on
// another model.
func (s operations) awaits(ensemble, model infer.ModelID) bool {
	waits := func(o *operation) bool {
		return len(o.above) > 0 && o.above[len(o.above)-1] == ensemble && (o.id == model || s.awaits(o.id, model))
	}
	for _, o := range s.running {
		if waits(o) {
			return true
		}
	}
	for _, list := range s.queued {
		if slices.ContainsFunc(list, waits) {
			return true
		}
	}
	return false
}
