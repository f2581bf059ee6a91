package infer_test

import (
	"cmp"
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
)

func TestModelIDsAreToldApartByTheirKeys(t *testing.T) {
	seen := make(map[string]infer.ModelID)
	for _, tt := range []struct {
		id        infer.ModelID
		key, text string
	}{
		{infer.ModelID{Name: "m"}, "m", "m"},
		{infer.ModelID{Name: "a::b"}, "a::b", "a::b"},
		{infer.ModelID{Namespace: "/repo", Name: "m"}, "/repo/m", "/repo::m"},
		{infer.ModelID{Namespace: "/repo::a", Name: "m"}, "/repo::a/m", "/repo::a::m"},
		{infer.ModelID{Namespace: "/repo", Name: "a::m"}, "/repo/a::m", "/repo::a::m"},
		{infer.ModelID{Namespace: "/", Name: "m"}, "//m", "/::m"},
	} {
		if key := tt.id.Key(); key != tt.key {
			t.Errorf("key of %#v is %q, want %q", tt.id, key, tt.key)
		}
		if other, taken := seen[tt.key]; taken {
			t.Errorf("%#v and %#v have one key", tt.id, other)
		}
		seen[tt.key] = tt.id
		if id := infer.ParseModelID(tt.key); id != tt.id {
			t.Errorf("%q reads as %#v, want %#v", tt.key, id, tt.id)
		}
		if text := tt.id.String(); text != tt.text {
			t.Errorf("%#v reads %q, want %q", tt.id, text, tt.text)
		}
	}
}

func TestAKeyThatBeginsWithASlashHasNoNamespace(t *testing.T) {
	if id := infer.ParseModelID("/m"); id != (infer.ModelID{Name: "m"}) {
		t.Errorf("/m reads as %#v", id)
	}
}

func TestModelsAreOrderedByNameNamespaceVersionAndGeneration(t *testing.T) {
	ascending := []infer.ModelRef{
		{Name: "a"},
		{Name: "a", Generation: 1},
		{Name: "a", Version: 2},
		{Name: "a", Version: 10},
		{Name: "a", Namespace: "/b"},
		{Name: "b"},
		{Name: "b", Namespace: "/a", Version: 1},
	}
	for i, a := range ascending {
		for j, b := range ascending {
			if got, want := a.Compare(b), cmp.Compare(i, j); got != want {
				t.Errorf("%v compared with %v is %d, want %d", a, b, got, want)
			}
		}
	}
	if got := (infer.ModelRef{Namespace: "/r", Name: "m", Version: 3, Generation: 7}).String(); got != "/r::m/3@7" {
		t.Errorf("a reference reads %s", got)
	}
}
