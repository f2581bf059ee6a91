package artifact_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/registry/internal/artifact"
)

func files(pairs ...string) map[string][]byte {
	all := make(map[string][]byte)
	for i := 0; i < len(pairs); i += 2 {
		all[pairs[i]] = []byte(pairs[i+1])
	}
	return all
}

func put(t *testing.T, root string, all map[string][]byte) string {
	t.Helper()
	dir, err := artifact.Put(root, all)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func read(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	all := make(map[string][]byte)
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		all[filepath.ToSlash(name)], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestFilesAreKeptByTheirContent(t *testing.T) {
	root := filepath.Join(t.TempDir(), "artifacts")
	one := files("1/model.onnx", "m", "config.pbtxt", "c", "1/empty", "")
	first := put(t, root, one)
	if diff := cmp.Diff(one, read(t, first)); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	if again := put(t, root, one); again != first {
		t.Errorf("the same files are in %s and %s", first, again)
	}
	for name, other := range map[string]map[string][]byte{
		"another content":    files("1/model.onnx", "n", "config.pbtxt", "c", "1/empty", ""),
		"another name":       files("2/model.onnx", "m", "config.pbtxt", "c", "1/empty", ""),
		"a border elsewhere": files("1/model.onnxm", "", "config.pbtxt", "c", "1/empty", ""),
	} {
		if dir := put(t, root, other); dir == first {
			t.Errorf("%s has the same directory", name)
		}
	}
	entries, err := os.ReadDir(root)
	if err != nil || len(entries) != 4 {
		t.Errorf("%d directories are left, %v; want 4", len(entries), err)
	}
}

func TestPathsStayWithinTheModel(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"", ".", "..", "../x", "1/../../x", "/etc/passwd", `1\x`, "a\x00b"} {
		if _, err := artifact.Put(root, files(name, "x")); errs.Of(err) != errs.InvalidParameter {
			t.Errorf("%q: %v", name, err)
		}
	}
	if entries, err := os.ReadDir(root); err != nil || len(entries) != 0 {
		t.Errorf("refused files leave %v, %v", entries, err)
	}
	dir := put(t, root, files("1/./x", "x"))
	if diff := cmp.Diff(files("1/x", "x"), read(t, dir)); diff != "" {
		t.Error(diff)
	}
}

func TestFilesThatCollideAreRefusedWhole(t *testing.T) {
	root := t.TempDir()
	if _, err := artifact.Put(root, files("1", "a file", "1/model.onnx", "in it")); errs.Of(err) != errs.LoadFailed {
		t.Errorf("Put = %v", err)
	}
	if entries, err := os.ReadDir(root); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestSweepKeepsWhatIsUsed(t *testing.T) {
	root := t.TempDir()
	kept, gone := put(t, root, files("a", "1")), put(t, root, files("b", "2"))
	if err := artifact.Sweep(root, func(dir string) bool { return dir == kept }); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(gone); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", gone, err)
	}
	read(t, kept)
	if err := artifact.Sweep(filepath.Join(root, "nosuch"), nil); err != nil {
		t.Errorf("nothing to sweep: %v", err)
	}
}
