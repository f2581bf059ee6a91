package registry

import (
	"github.com/nereid-serving/nereid/libs/bus"
)

// mirror is a bucket as its one writer knows it: what the watch told and what
// was written since. It is owned by its term's loop.
type mirror[T any] struct {
	entries map[string]bus.Entry[T]
	// passed is, by key, the revision up to which the watch tells nothing new:
	// writes come back as events.
	passed map[string]uint64
	// revision is the highest known of the bucket.
	revision uint64
	caughtUp bool
	// kept is told of each value that is put, and of each that is dropped; nil
	// tells nobody. It is set before there are values.
	kept func(key string, value T, present bool)
}

func newMirror[T any]() *mirror[T] {
	return &mirror[T]{entries: make(map[string]bus.Entry[T]), passed: make(map[string]uint64)}
}

// apply takes an event in and reports whether it told anything new. A value
// that cannot be read is kept as the zero value, so that it can be replaced.
func (m *mirror[T]) apply(e bus.Event[T]) bool {
	m.revision = max(m.revision, e.Revision)
	switch e.Kind {
	case bus.EventCaughtUp:
		m.caughtUp = true
		return true
	case bus.EventPut:
		if e.Revision <= m.passed[e.Key] {
			return false
		}
		if e.Err != nil {
			var none T
			e.Value = none
		}
		m.put(e.Key, e.Value, e.Revision)
		return true
	case bus.EventDelete:
		_, known := m.entries[e.Key]
		if e.Revision <= m.passed[e.Key] || !known {
			return false
		}
		m.drop(e.Key, e.Revision)
		return true
	}
	return false
}

// put notes a value, also one that was just written.
func (m *mirror[T]) put(key string, value T, revision uint64) {
	m.entries[key] = bus.Entry[T]{Key: key, Value: value, Revision: revision}
	m.passed[key] = revision
	m.revision = max(m.revision, revision)
	if m.kept != nil {
		m.kept(key, value, true)
	}
}

// drop notes that the value of a revision, or one before it, is gone.
func (m *mirror[T]) drop(key string, revision uint64) {
	before, known := m.entries[key]
	delete(m.entries, key)
	m.passed[key] = revision
	if m.kept != nil && known {
		m.kept(key, before.Value, false)
	}
}
