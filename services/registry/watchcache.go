package registry

import (
	"github.com/nereid-serving/nereid/libs/bus"
)

// watchCache is a bucket as its one writer knows it: the events of the watch, and
// the writes since. It is owned by the leadership's loop.
type watchCache[T any] struct {
	entries map[string]bus.Entry[T]
	// skipTo is, by key, the revision up to which the watch sends nothing new:
	// writes come back as events.
	skipTo map[string]uint64
	// revision is the highest known of the bucket.
	revision uint64
	caughtUp bool
	// onChange, if it is set, is called for each value that is put or dropped. It is
	// set before there are values.
	onChange func(key string, value T, present bool)
}

func newWatchCache[T any]() *watchCache[T] {
	return &watchCache[T]{entries: make(map[string]bus.Entry[T]), skipTo: make(map[string]uint64)}
}

// apply applies an event and reports whether it changed anything. A value
// that cannot be read is kept as the zero value, so that it can be replaced.
func (c *watchCache[T]) apply(e bus.Event[T]) bool {
	c.revision = max(c.revision, e.Revision)
	switch e.Kind {
	case bus.EventCaughtUp:
		c.caughtUp = true
		return true
	case bus.EventPut:
		if e.Revision <= c.skipTo[e.Key] {
			return false
		}
		if e.Err != nil {
			var none T
			e.Value = none
		}
		c.put(e.Key, e.Value, e.Revision)
		return true
	case bus.EventDelete:
		_, known := c.entries[e.Key]
		if e.Revision <= c.skipTo[e.Key] || !known {
			return false
		}
		c.drop(e.Key, e.Revision)
		return true
	}
	return false
}

// put notes a value, also one that was just written.
func (c *watchCache[T]) put(key string, value T, revision uint64) {
	c.entries[key] = bus.Entry[T]{Key: key, Value: value, Revision: revision}
	c.skipTo[key] = revision
	c.revision = max(c.revision, revision)
	if c.onChange != nil {
		c.onChange(key, value, true)
	}
}

// drop notes that the value of a revision, or one before it, is gone.
func (c *watchCache[T]) drop(key string, revision uint64) {
	before, known := c.entries[key]
	delete(c.entries, key)
	c.skipTo[key] = revision
	if c.onChange != nil && known {
		c.onChange(key, before.Value, false)
	}
}
