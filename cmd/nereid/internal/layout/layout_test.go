package layout_test

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/layout"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
)

// tree writes files with a byte each, but for those of ONNX models.
func tree(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// served lists the files of a repository by their paths in it, with what they are links to.
func served(t *testing.T, repository, under string) map[string]string {
	t.Helper()
	files := make(map[string]string)
	var walk func(dir, at string)
	walk = func(dir, at string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if info.IsDir() {
				walk(path, filepath.Join(at, e.Name()))
				continue
			}
			target, err := filepath.EvalSymlinks(path)
			if err != nil {
				t.Fatal(err)
			}
			files[filepath.Join(at, e.Name())], _ = filepath.Rel(under, target)
		}
	}
	walk(repository, "")
	return files
}

func TestModelsAreServedAsTheyLie(t *testing.T) {
	for name, c := range map[string]struct {
		files     []string
		arguments []string
		want      map[string]string // of the repository of links
		as        []string          // repositories that are served as they are
	}{
		"a file":         {[]string{"a.onnx"}, []string{"a.onnx"}, map[string]string{"a/1/model.onnx": "a.onnx"}, nil},
		"files":          {[]string{"a.onnx", "b.plan"}, []string{"a.onnx", "b.plan"}, map[string]string{"a/1/model.onnx": "a.onnx", "b/1/model.plan": "b.plan"}, nil},
		"a named file":   {[]string{"a.onnx"}, []string{"b=a.onnx"}, map[string]string{"b/1/model.onnx": "a.onnx"}, nil},
		"one file twice": {[]string{"a.onnx"}, []string{"b=a.onnx", "c=a.onnx"}, map[string]string{"b/1/model.onnx": "a.onnx", "c/1/model.onnx": "a.onnx"}, nil},
		"a file that says nothing": {
			[]string{"net/model.plan", "seg/2/model.onnx"},
			[]string{"net/model.plan", "seg/2/model.onnx"},
			map[string]string{"net/1/model.plan": "net/model.plan", "seg/1/model.onnx": "seg/2/model.onnx"},
			nil,
		},
		"Python and what it imports": {
			[]string{"up/model.py", "up/words.py", "up/notes.txt"},
			[]string{"up/model.py"},
			map[string]string{"up/1/model.py": "up/model.py", "up/1/words.py": "up/words.py"},
			nil,
		},
		"PyTorch and its configuration": {
			[]string{"t/net.pt", "t/config.pbtxt", "t/labels.txt"},
			[]string{"t/net.pt"},
			map[string]string{"net/1/model.pt": "t/net.pt", "net/config.pbtxt": "t/config.pbtxt", "net/labels.txt": "t/labels.txt"},
			nil,
		},
		"a configuration beside a file of another name": {
			[]string{"t/net.onnx", "t/config.pbtxt"}, []string{"n=t"}, map[string]string{"n/1/model.onnx": "t/net.onnx", "n/config.pbtxt": "t/config.pbtxt"}, nil,
		},
		"a configuration beside several": {
			[]string{"t/a.onnx", "t/b.onnx", "t/config.pbtxt"}, []string{"t"}, map[string]string{"a/1/model.onnx": "t/a.onnx", "b/1/model.onnx": "t/b.onnx"}, nil,
		},
		"a plan and its description": {
			[]string{"p.plan", "p.plan.json"}, []string{"p.plan"}, map[string]string{"p/1/model.plan": "p.plan", "p/1/model.plan.json": "p.plan.json"}, nil,
		},
		"OpenVINO":     {[]string{"v.xml", "v.bin", "w.bin"}, []string{"v.xml"}, map[string]string{"v/1/model.xml": "v.xml", "v/1/model.bin": "v.bin"}, nil},
		"a SavedModel": {[]string{"half/saved_model.pb", "half/variables/x"}, []string{"half"}, map[string]string{"half/1/model.savedmodel/saved_model.pb": "half/saved_model.pb", "half/1/model.savedmodel/variables/x": "half/variables/x"}, nil},
		"TensorFlow Serving's directory": {
			[]string{"half/00000123/saved_model.pb"}, []string{"half"}, map[string]string{"half/1/model.savedmodel/saved_model.pb": "half/00000123/saved_model.pb"}, nil,
		},
		"KServe's mount": {
			[]string{"mnt/models/model.onnx", "mnt/models/config.pbtxt", "mnt/models/labels.txt"},
			[]string{"m=mnt/models"},
			map[string]string{
				"m/1/model.onnx": "mnt/models/model.onnx", "m/1/config.pbtxt": "mnt/models/config.pbtxt", "m/1/labels.txt": "mnt/models/labels.txt",
				"m/config.pbtxt": "mnt/models/config.pbtxt", "m/labels.txt": "mnt/models/labels.txt",
			},
			nil,
		},
		"a directory of files": {[]string{"all/a.onnx", "all/b.xml", "all/notes.txt"}, []string{"all"}, map[string]string{"a/1/model.onnx": "all/a.onnx", "b/1/model.xml": "all/b.xml"}, nil},
		"models without versions": {
			[]string{"all/a/model.onnx", "all/b/model.py"}, []string{"all"}, map[string]string{"a/1/model.onnx": "all/a/model.onnx", "b/1/model.py": "all/b/model.py"}, nil,
		},
		"a repository with a mistake": {[]string{"all/a/model.onnx", "all/b/1/model.onnx"}, []string{"all"}, nil, []string{"all"}},
		"a model's directory":         {[]string{"r/a/1/model.onnx", "r/b/1/model.onnx"}, []string{"r/a"}, map[string]string{"a/1/model.onnx": "r/a/1/model.onnx"}, nil},
		"a repository":                {[]string{"r/a/1/model.onnx", "r/e/config.pbtxt"}, []string{"r"}, nil, []string{"r"}},
		"a repository and a file": {
			[]string{"r/a/1/model.onnx", "b.onnx"}, []string{"r", "b.onnx"}, map[string]string{"b/1/model.onnx": "b.onnx"}, []string{"r"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := tree(t, c.files...)
			t.Chdir(dir)
			a, err := layout.Arrange(c.arguments)
			if err != nil {
				t.Fatal(err)
			}
			defer a.Remove()
			var as []string
			got := map[string]string(nil)
			for _, r := range a.Repositories {
				if rel, err := filepath.Rel(dir, r); err == nil && filepath.IsLocal(rel) {
					as = append(as, rel)
					continue
				}
				got = served(t, r, dir)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.as, as); diff != "" {
				t.Errorf("repositories (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatCannotBeServedIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		files     []string
		arguments []string
		want      string
	}{
		"missing":        {nil, []string{"a.onnx"}, "a.onnx is not there"},
		"no model":       {[]string{"notes.txt"}, []string{"notes.txt"}, "notes.txt is no model file: name one of *.onnx"},
		"weights":        {[]string{"a.safetensors"}, []string{"a.safetensors"}, "export the model to ONNX"},
		"PyTorch alone":  {[]string{"a.pt"}, []string{"a.pt"}, "put a config.pbtxt that lists them beside it"},
		"nothing":        {[]string{"d/notes.txt"}, []string{"d"}, "d has nothing to serve"},
		"one name twice": {[]string{"a.onnx", "b/a.xml"}, []string{"a.onnx", "b/a.xml"}, `would both be served as "a"`},
		"many under one": {[]string{"d/a.onnx", "d/b.onnx"}, []string{"m=d"}, "has 2 model files"},
		"a hidden name":  {[]string{"a.onnx"}, []string{".m=a.onnx"}, "is no name for the model"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(tree(t, c.files...))
			_, err := layout.Arrange(c.arguments)
			if errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "nereid-models-*", "a")); len(left) > 0 {
				t.Errorf("%v is left", left)
			}
		})
	}
	dir := tree(t)
	if err := os.WriteFile(filepath.Join(dir, "a.onnx"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := layout.Arrange([]string{filepath.Join(dir, "a.onnx")}); err == nil || !strings.Contains(err.Error(), "is empty") {
		t.Errorf("an empty file: %v", err)
	}
}

// Weights outside an ONNX model's file are found beside the link as well, but for those
// that a file claims to have elsewhere.
func TestWeightsOfONNXModelsAreLinked(t *testing.T) {
	dir := tree(t, "weights/w.bin", "secret")
	m := onnxmodel.AddSub(tensor.Int32, 1)
	for _, location := range []string{"weights/w.bin", "../secret"} {
		m.Graph.Initializers = append(m.Graph.Initializers, onnxmodel.Tensor{
			Name: location, Type: tensor.FP32, Shape: tensor.Shape{1}, External: map[string]string{"location": location},
		})
	}
	m.WriteFile(t, filepath.Join(dir, "a.onnx"))
	a, err := layout.Arrange([]string{filepath.Join(dir, "a.onnx")})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Remove()
	got := slices.Sorted(maps.Keys(served(t, a.Repositories[0], dir)))
	if diff := cmp.Diff([]string{"a/1/model.onnx", "a/1/weights/w.bin"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if text := a.Real(filepath.Join(a.Repositories[0], "a", "1", "model.onnx") + ": no"); text != filepath.Join(dir, "a.onnx")+": no" {
		t.Error(text)
	}
	a.Remove()
	if _, err := os.Stat(a.Repositories[0]); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the links are there still: %v", err)
	}
}
