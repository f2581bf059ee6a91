package bus

import "testing"

func TestEscapedKeys(t *testing.T) {
	tests := []struct{ key, want string }{
		{"resnet50_v1.5-int8", "resnet50_v1.5-int8"},
		{"team/bert", "team/bert"},
		{"", "="},
		{"a b", "a=20b"},
		{".hidden.", "=2Ehidden=2E"},
		{"a..b", "a.=2Eb"},
		{"a=b", "a=3Db"},
		{"*>", "=2A=3E"},
		{"é\x00", "=C3=A9=00"},
	}
	for _, tt := range tests {
		t.Run(tt.want, func(t *testing.T) {
			got, err := escapeKey(tt.key)
			if err != nil || got != tt.want {
				t.Errorf("escapeKey(%q) = %q, %v, want %q", tt.key, got, err, tt.want)
			}
		})
	}
	for _, bad := range []string{"=2", "a==", "=ZZ"} {
		if key, err := unescapeKey(bad); err == nil {
			t.Errorf("unescapeKey(%q) = %q without error", bad, key)
		}
	}
}

func TestEscapedOwnedKeys(t *testing.T) {
	owned := Spec{KeyedByOwner: true}
	for key, want := range map[string]string{
		"w1/digits":           "w1.digits",
		"node.eu.1/bert.v2":   "node=2Eeu=2E1.bert.v2",
		"w1/":                 "w1.=",
		"w 1//repo/a/bert..x": "w=201./repo/a/bert.=2Ex",
	} {
		got, err := owned.escape(key)
		if err != nil || got != want {
			t.Errorf("%q is stored under %q, %v; want %q", key, got, err, want)
		}
		if back, err := owned.unescape(got); err != nil || back != key {
			t.Errorf("%q is read back as %q, %v", key, back, err)
		}
	}
}

func FuzzKeyRoundTrip(f *testing.F) {
	for _, seed := range []string{"", ".", "..", "=", "=3D", "a.b", "\xff", "日本"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, key string) {
		escaped, err := escapeKey(key)
		if err != nil {
			t.Skip()
		}
		if got, err := unescapeKey(escaped); err != nil || got != key {
			t.Errorf("%q → %q → %q, %v", key, escaped, got, err)
		}
		if _, err := unescapeKey(key); err != nil { // foreign keys give an error, not a panic
			return
		}
	})
}
