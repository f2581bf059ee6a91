package worker

import (
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
)

// A parser leaves alone what is no flag.
func TestDefaultIsThatOfTheFlags(t *testing.T) {
	c, want := Config{ID: "w1", DrainTimeout: 1, ReloadLinger: 1}, Default()
	want.ID, want.DrainTimeout, want.ReloadLinger = "w1", 1, 1
	parser, err := kong.New(&c, kong.Vars{"onnxruntime": RuntimeLibrary()})
	if err != nil {
		t.Fatal(err)
	}
	_, err = parser.Parse(nil)
	if diff := cmp.Diff(c, want); diff != "" || err != nil {
		t.Errorf("%v (-flags +Default):\n%s", err, diff)
	}
}
