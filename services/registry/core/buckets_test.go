package core

import (
	"testing"

	"google.golang.org/protobuf/proto"

	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Events come as the watch may bring them after writes of one's own: late, and in the order
// of revisions.
func TestTableKnowsItsOwnWrites(t *testing.T) {
	k := Key{Name: "k"}
	value := func(name string) *nereidv1.PoolValue { return &nereidv1.PoolValue{Name: name} }
	put := func(name string, revision uint64) Changed {
		return Changed{Key: k, Value: value(name), Revision: revision}
	}
	end := func(revision uint64) Changed { return Changed{Key: k, Revision: revision, Deleted: true} }
	own := func(t *table[*nereidv1.PoolValue], revision uint64) {
		t.written(Write{Key: k, Value: value("own")}, revision)
	}
	drop := func(t *table[*nereidv1.PoolValue], replaces uint64) { t.written(Write{Key: k, Replaces: replaces}, 0) }
	for _, tt := range []struct {
		name  string
		act   func(t *table[*nereidv1.PoolValue]) (news bool)
		value string // empty for none
		news  bool
		open  int // own writes that have not come back
	}{
		{"value of another", func(t *table[*nereidv1.PoolValue]) bool { return t.apply(put("theirs", 3)) }, "theirs", true, 0},
		{"own write comes back", func(t *table[*nereidv1.PoolValue]) bool { own(t, 3); return t.apply(put("own", 3)) }, "own", false, 0},
		{"older value after own write", func(t *table[*nereidv1.PoolValue]) bool { own(t, 4); return t.apply(put("before", 3)) }, "own", false, 1},
		{"newer value after own write", func(t *table[*nereidv1.PoolValue]) bool { own(t, 4); return t.apply(put("theirs", 5)) }, "theirs", true, 0},
		{"deleted value after own deletion", func(t *table[*nereidv1.PoolValue]) bool {
			own(t, 4)
			drop(t, 4)
			return t.apply(put("own", 4))
		}, "", false, 1},
		{"own deletion comes back", func(t *table[*nereidv1.PoolValue]) bool { own(t, 4); drop(t, 4); return t.apply(end(5)) }, "", false, 0},
		{"older deletion after own write", func(t *table[*nereidv1.PoolValue]) bool { own(t, 6); return t.apply(end(5)) }, "own", false, 1},
		{"deletion of another", func(t *table[*nereidv1.PoolValue]) bool { own(t, 4); return t.apply(end(5)) }, "", true, 0},
		{"unreadable value", func(t *table[*nereidv1.PoolValue]) bool { return t.apply(Changed{Key: k, Revision: 3}) }, "", true, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newTable[*nereidv1.PoolValue]()
			if news := tt.act(&m); news != tt.news || m.get(k).GetName() != tt.value || len(m.own) != tt.open {
				t.Errorf("news %t, value %q, %d own writes are open; want %t, %q, %d", news, m.get(k).GetName(), len(m.own), tt.news, tt.value, tt.open)
			}
		})
	}
}

// However many keys come and go, a table remembers those that are there.
func TestTableForgetsWhatIsGone(t *testing.T) {
	m := newTable[*nereidv1.AssignmentValue]()
	for i := range uint64(1000) {
		k := Key{Owner: "w", Name: string(rune('a' + i%26))}
		m.written(Write{Key: k, Value: proto.Message(&nereidv1.AssignmentValue{})}, 2*i+1)
		m.apply(Changed{Key: k, Value: &nereidv1.AssignmentValue{}, Revision: 2*i + 1})
		m.written(Write{Key: k, Replaces: 2*i + 1}, 0)
		m.apply(Changed{Key: k, Revision: 2*i + 2, Deleted: true})
	}
	if n := len(m.entries) + len(m.own) + len(m.byOwner) + len(m.byName); n != 0 || m.revision != 2000 {
		t.Errorf("%d entries are left at revision %d", n, m.revision)
	}
}
