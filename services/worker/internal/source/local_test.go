package source

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelfiles"
)

func TestDirectoriesOfURLs(t *testing.T) {
	for text, want := range map[string]string{
		"file:///models/digits/1":   "/models/digits/1",
		"file:///my%20models/a":     "/my models/a",
		"file://host/models":        "",
		"file:models":               "",
		"models/digits":             "",
		"s3://bucket/models/digits": "",
		"":                          "",
		"%":                         "",
	} {
		got, err := pathOf(text)
		if got != want || (err == nil) == (want == "") {
			t.Errorf("%q is the directory %q, %v; want %q", text, got, err, want)
		}
		if err != nil && errs.Of(err) != errs.LoadFailed {
			t.Errorf("%q fails for %q, want load_failed", text, errs.Of(err))
		}
	}
}

// model writes a model and names its content.
func model(t *testing.T) (dir string, c Content) {
	t.Helper()
	dir = t.TempDir()
	write(t, filepath.Join(dir, "1", "model.onnx"), "weights")
	write(t, filepath.Join(dir, "warmup", "sample"), "1234")
	tree, err := modelfiles.List(t.Context(), modelfiles.Local{}, dir, filepath.Join(dir, "1"))
	if err != nil {
		t.Fatal(err)
	}
	digest, err := modelfiles.NewDigester(modelfiles.Local{}).Digest(t.Context(), tree)
	if err != nil {
		t.Fatal(err)
	}
	return dir, Content{ModelURL: "file://" + dir, URL: "file://" + dir + "/1", Digest: digest}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFilesAreHeldAgainstTheirDigest(t *testing.T) {
	for name, edit := range map[string]func(t *testing.T, dir string){
		"written over": func(t *testing.T, dir string) { write(t, filepath.Join(dir, "1", "model.onnx"), "WEIGHTS") },
		"a new file":   func(t *testing.T, dir string) { write(t, filepath.Join(dir, "1", "extra"), "") },
		"warm-up data": func(t *testing.T, dir string) { write(t, filepath.Join(dir, "warmup", "sample"), "4321") },
		"replaced, of the same time": func(t *testing.T, dir string) {
			old := filepath.Join(dir, "1", "model.onnx")
			info, err := os.Stat(old)
			if err != nil {
				t.Fatal(err)
			}
			write(t, old+".new", "WEIGHTS")
			if err := errors.Join(os.Chtimes(old+".new", info.ModTime(), info.ModTime()), os.Rename(old+".new", old)); err != nil {
				t.Fatal(err)
			}
		},
		"gone": func(t *testing.T, dir string) {
			if err := os.RemoveAll(filepath.Join(dir, "1")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, c := model(t)
			files, err := Local{}.Fetch(t.Context(), c, nil)
			if err != nil || files.ModelDir() != dir || files.Dir() != filepath.Join(dir, "1") {
				t.Fatalf("files %v, error %v", files, err)
			}
			if err := files.Verify(t.Context()); err != nil {
				t.Errorf("files that nobody touched: %v", err)
			}
			edit(t, dir)
			if err := files.Verify(t.Context()); errs.Of(err) != errs.FilesChanged || !strings.Contains(err.Error(), "load the model again") {
				t.Errorf("Verify = %v", err)
			}
			if _, err := (Local{}).Fetch(t.Context(), c, nil); errs.Of(err) != errs.FilesChanged {
				t.Errorf("Fetch = %v", err)
			}
		})
	}
}

// A fingerprint of this host stands for the digest, so that large files are
// not read once more.
func TestFilesAreKnownByTheirFingerprint(t *testing.T) {
	dir, c := model(t)
	var tree *modelfiles.Tree
	for tree == nil || tree.Fingerprint() == "" { // until the files are old enough
		var err error
		if tree, err = modelfiles.List(t.Context(), modelfiles.Local{}, dir, filepath.Join(dir, "1")); err != nil {
			t.Fatal(err)
		}
		<-time.NewTimer(10 * time.Millisecond).C
	}
	c.Digest, c.Fingerprint = "sha256:of the same files, which nobody reads", tree.Fingerprint()
	files, err := Local{}.Fetch(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "1", "model.onnx"), "weights") // the same, but who knows
	if err := files.Verify(t.Context()); errs.Of(err) != errs.FilesChanged {
		t.Errorf("after a change: %v", err)
	}
}

func TestContentWithoutDigestIsTaken(t *testing.T) {
	files, err := Local{}.Fetch(t.Context(), Content{ModelURL: "file:///no/m", URL: "file:///no/m/1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := files.Verify(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestVerifyEndsWithItsContext(t *testing.T) {
	_, c := model(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (Local{}).Fetch(ctx, c, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Fetch = %v", err)
	}
}
