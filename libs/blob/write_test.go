package blob_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/nereid-serving/nereid/libs/errs"
)

// An object is there whole, or not at all and the one before stays.
func TestAnObjectIsWrittenWhole(t *testing.T) {
	root := t.TempDir()
	dir := at(t, "file://"+root)
	for _, content := range []string{"one", strings.Repeat("two", 10<<20), ""} {
		if err := dir.Write(t.Context(), "a/b", strings.NewReader(content)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(root, "a", "b")); err != nil || string(got) != content {
			t.Errorf("%d bytes are there (%v), want %d", len(got), err, len(content))
		}
	}
	broken := errors.New("broken")
	if err := dir.Write(t.Context(), "a/b", io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("a source that breaks: %v", err)
	}
	list, err := dir.List(t.Context(), "")
	if err != nil || len(list) != 1 || list[0].Size != 0 {
		t.Errorf("%v, %v are there", list, err)
	}
	if err := dir.Write(t.Context(), "../up", strings.NewReader("x")); errs.Of(err) == "" {
		t.Error("an object is written outside of the directory")
	}
}
