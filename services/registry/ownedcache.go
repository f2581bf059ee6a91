package registry

import "github.com/nereid-serving/nereid/libs/bus"

// ownedCache is the watch cache of a bucket whose keys have owners: workers' parts of
// models, found by worker and by model. It is owned by the leadership's loop.
type ownedCache[T any] struct {
	*watchCache[T]
	// byOwner holds the keys' names by owner, names their owners by name.
	byOwner, byName map[string]map[string]bool
	// marked are the keys of whose values mark says true; a nil mark says it of
	// none.
	mark   func(name string, value T) bool
	marked map[string]bool
	// changed, if it is set, is called as onChange is, after the indexes are updated.
	changed func(key string, value T, present bool)
}

func newOwnedCache[T any]() *ownedCache[T] {
	g := &ownedCache[T]{
		watchCache: newWatchCache[T](), marked: make(map[string]bool),
		byOwner: make(map[string]map[string]bool), byName: make(map[string]map[string]bool),
	}
	g.onChange = func(key string, value T, present bool) {
		owner, name := bus.CutKey(key)
		if delete(g.marked, key); present && g.mark != nil && g.mark(name, value) {
			g.marked[key] = true
		}
		index(g.byOwner, owner, name, present)
		index(g.byName, name, owner, present)
		if g.changed != nil {
			g.changed(key, value, present)
		}
	}
	return g
}

func index(in map[string]map[string]bool, a, b string, present bool) {
	switch {
	case present && in[a] == nil:
		in[a] = map[string]bool{b: true}
	case present:
		in[a][b] = true
	default:
		if delete(in[a], b); len(in[a]) == 0 {
			delete(in, a)
		}
	}
}

// of gives a key's value, the zero value if there is none.
func (c *ownedCache[T]) of(owner, name string) T { return c.entries[bus.OwnedKey(owner, name)].Value }
