package registry

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/bus"
)

// TestWatchCacheKnowsItsOwnWrites feeds events as the watch may bring them after
// writes of one's own: late, and in the order of revisions.
func TestWatchCacheKnowsItsOwnWrites(t *testing.T) {
	put := func(value string, revision uint64) bus.Event[string] {
		return bus.Event[string]{Kind: bus.EventPut, Key: "k", Value: value, Revision: revision}
	}
	end := func(revision uint64) bus.Event[string] {
		return bus.Event[string]{Kind: bus.EventDelete, Key: "k", Revision: revision}
	}
	tests := []struct {
		name  string
		act   func(m *watchCache[string]) (news bool)
		value string // empty for none
		news  bool
	}{
		{"value of another", func(m *watchCache[string]) bool { return m.apply(put("theirs", 3)) }, "theirs", true},
		{"own write comes back", func(m *watchCache[string]) bool {
			m.put("k", "own", 3)
			return m.apply(put("own", 3))
		}, "own", false},
		{"older value comes after own write", func(m *watchCache[string]) bool {
			m.put("k", "own", 4)
			return m.apply(put("before", 3))
		}, "own", false},
		{"newer value comes after own write", func(m *watchCache[string]) bool {
			m.put("k", "own", 4)
			return m.apply(put("theirs", 5))
		}, "theirs", true},
		{"deleted value comes after own deletion", func(m *watchCache[string]) bool {
			m.put("k", "own", 4)
			m.drop("k", 4)
			return m.apply(put("own", 4))
		}, "", false},
		{"own deletion comes back", func(m *watchCache[string]) bool {
			m.put("k", "own", 4)
			m.drop("k", 4)
			return m.apply(end(5))
		}, "", false},
		{"older deletion comes after own write", func(m *watchCache[string]) bool {
			m.put("k", "own", 6)
			return m.apply(end(5))
		}, "own", false},
		{"deletion of another", func(m *watchCache[string]) bool {
			m.put("k", "own", 4)
			return m.apply(end(5))
		}, "", true},
		{"unreadable value has its revision alone", func(m *watchCache[string]) bool {
			e := put("half", 3)
			e.Err = errors.New("unreadable")
			return m.apply(e)
		}, "", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newWatchCache[string]()
			if news := tt.act(m); news != tt.news {
				t.Errorf("news = %t, want %t", news, tt.news)
			}
			if diff := cmp.Diff(tt.value, m.entries["k"].Value); diff != "" {
				t.Errorf("value (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWatchCacheRevisionNeverFalls(t *testing.T) {
	m := newWatchCache[string]()
	m.put("k", "own", 9)
	m.apply(bus.Event[string]{Kind: bus.EventCaughtUp, Revision: 7})
	if m.revision != 9 || !m.caughtUp {
		t.Errorf("revision %d, caught up %t", m.revision, m.caughtUp)
	}
	m.apply(bus.Event[string]{Kind: bus.EventCaughtUp, Revision: 12})
	if m.revision != 12 {
		t.Errorf("revision %d, want 12", m.revision)
	}
}

func TestWatchCacheReturnsWhatItHolds(t *testing.T) {
	m := newWatchCache[string]()
	kept := make(map[string]string)
	m.onChange = func(key, value string, present bool) {
		if kept[key] = value; !present {
			delete(kept, key)
		}
	}
	m.apply(bus.Event[string]{Kind: bus.EventPut, Key: "a", Value: "open", Revision: 1})
	m.put("b", "open", 2)
	m.put("a", "done", 4)
	m.drop("b", 2)
	m.drop("c", 3)
	if diff := cmp.Diff(map[string]string{"a": "done"}, kept); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
}

func TestOwnedCacheFindsByOwnerAndName(t *testing.T) {
	g := newOwnedCache[string]()
	g.mark = func(name, value string) bool { return name == "b" && value == "open" }
	g.apply(bus.Event[string]{Kind: bus.EventPut, Key: "w/a", Value: "open", Revision: 1})
	g.put("w/b", "open", 2)
	g.put("v/b", "open", 3)
	g.put("v/c", "open", 4)
	g.put("v/b", "done", 5)
	g.drop("v/c", 4)
	g.drop("w/a", 1)
	if diff := cmp.Diff(map[string]map[string]bool{"w": {"b": true}, "v": {"b": true}}, g.byOwner); diff != "" {
		t.Errorf("owners (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]map[string]bool{"b": {"w": true, "v": true}}, g.byName); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]bool{"w/b": true}, g.marked); diff != "" || g.of("v", "b") != "done" || g.of("v", "c") != "" {
		t.Errorf("marked (-want +got):\n%s; %v", diff, g.entries)
	}
}
