package infer_test

import (
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
