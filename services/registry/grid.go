package registry

import "github.com/nereid-serving/nereid/libs/bus"

// grid is the mirror of a bucket whose keys have owners: workers' parts of
// models, found by worker and by model. It is owned by its term's loop.
type grid[T any] struct {
	*mirror[T]
	// owners holds the keys' names by owner, names their owners by name.
	owners, names map[string]map[string]bool
	// marked are the keys of whose values mark says true; a nil mark says it of
	// none.
	mark   func(name string, value T) bool
	marked map[string]bool
	// then is told what kept is, when the grid has it; nil tells nobody.
	then func(key string, value T, present bool)
}

func newGrid[T any]() *grid[T] {
	g := &grid[T]{
		mirror: newMirror[T](), marked: make(map[string]bool),
		owners: make(map[string]map[string]bool), names: make(map[string]map[string]bool),
	}
	g.kept = func(key string, value T, present bool) {
		owner, name := bus.CutKey(key)
		if delete(g.marked, key); present && g.mark != nil && g.mark(name, value) {
			g.marked[key] = true
		}
		index(g.owners, owner, name, present)
		index(g.names, name, owner, present)
		if g.then != nil {
			g.then(key, value, present)
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
func (g *grid[T]) of(owner, name string) T { return g.entries[bus.OwnedKey(owner, name)].Value }
