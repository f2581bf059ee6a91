package repo_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
	"github.com/nereid-serving/nereid/services/registry/internal/repo"
)

const config = `backend: "onnxruntime"
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
`

func TestScanListsModelsAndVersions(t *testing.T) {
	root := tree(t, map[string]string{
		"b/config.pbtxt":       config + `version_policy { latest { num_versions: 2 } }`,
		"b/9/model.onnx":       "nine",
		"b/10/model.onnx":      "ten",
		"b/11/deep/x.bin":      "eleven",
		"b/01/model.onnx":      "leading zero",
		"b/v2/model.onnx":      "no number",
		"b/-1/model.onnx":      "negative",
		"b/warmup/sample":      "",
		"b/.git/config":        "",
		"b/labels.txt":         "",
		"a/config.pbtxt":       `input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name: "y" data_type: TYPE_FP32 dims: 1 }`,
		"a/0/model.onnx":       "backend from the file",
		".hidden/config.pbtxt": config,
		"file":                 "not a model",
	})
	snap := scan(t, repo.New([]string{root}, repo.Options{}))
	got := make(map[string][]int64)
	for _, m := range snap.Models {
		if m.Problem != "" || m.Config.GetName() != m.Name || m.URL != "file://"+filepath.Join(root, m.Name) {
			t.Errorf("model %s: problem %q, config %q, URL %s", m.Name, m.Problem, m.Config.GetName(), m.URL)
		}
		for _, v := range m.Versions {
			got[m.Name] = append(got[m.Name], v.Number)
			if !strings.HasPrefix(v.Digest, "sha256:") || v.Problem != "" {
				t.Errorf("%s version %d: digest %q, problem %q", m.Name, v.Number, v.Digest, v.Problem)
			}
		}
	}
	if diff := cmp.Diff(map[string][]int64{"a": {0}, "b": {10, 11}}, got); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
	if len(snap.Models[1].Warnings) != 3 {
		t.Errorf("warnings = %q, want one for each of -1, 01 and v2", snap.Models[1].Warnings)
	}
	if want := snap.Models[1].URL + "/10"; snap.Models[1].Versions[0].URL != want {
		t.Errorf("version URL = %s, want %s", snap.Models[1].Versions[0].URL, want)
	}
}

func TestExampleModelsHaveNoProblem(t *testing.T) {
	snap := scan(t, repo.New([]string{filepath.Join("..", "..", "..", "..", "examples", "models")}, repo.Options{}))
	if len(snap.Models) == 0 {
		t.Error("there are no example models")
	}
	for _, m := range snap.Models {
		if m.Problem != "" || len(m.Warnings) > 0 || len(m.Versions) == 0 || m.Versions[0].Problem != "" {
			t.Errorf("%s: problem %q, warnings %q, versions %v", m.Name, m.Problem, m.Warnings, m.Versions)
		}
	}
}

func TestScanReportsEachModelsProblem(t *testing.T) {
	root := tree(t, map[string]string{
		"good/config.pbtxt":        config,
		"good/1/model.onnx":        "m",
		"broken/config.pbtxt":      "backnd: 1",
		"broken/1/model.onnx":      "m",
		"bare/1/model.onnx":        "m",
		"versionless/config.pbtxt": config,
		"absent/config.pbtxt":      config + `version_policy { specific { versions: 5 } }`,
		"absent/1/model.onnx":      "m",
		"long/config.pbtxt":        strings.Repeat("#", 1<<20),
		"twice/config.pbtxt":       config,
		"directory/config.pbtxt/x": "",
		"dangling/config.pbtxt":    config,
		"dangling/1/keep":          "",
	})
	if err := os.Symlink(filepath.Join(root, "nowhere"), filepath.Join(root, "dangling", "1", "model.onnx")); err != nil {
		t.Fatal(err)
	}
	second := tree(t, map[string]string{"twice/config.pbtxt": config})
	snap := scan(t, repo.New([]string{root, second}, repo.Options{}))
	want := map[string]string{
		"good":        "",
		"broken":      `unknown field "backnd": did you mean backend?`,
		"bare":        "1/model.onnx: autofill failed for model 'bare': reading an ONNX model",
		"versionless": "at least one version must be available under the version policy of model 'versionless'",
		"absent":      "at least one version must be available",
		"long":        "more than the 262144 that are allowed",
		"twice":       "model appears in two or more repositories",
		"directory":   "is not a regular file",
		"dangling":    "",
	}
	for _, m := range snap.Models {
		text, ok := want[m.Name]
		if !ok || !strings.Contains(m.Problem, text) || (text == "") != (m.Problem == "") {
			t.Errorf("%s: problem %q, want %q", m.Name, m.Problem, text)
		}
		if (m.Config == nil) != (m.Problem != "") {
			t.Errorf("%s: config %v with problem %q", m.Name, m.Config, m.Problem)
		}
		delete(want, m.Name)
	}
	if len(want) > 0 {
		t.Errorf("not in the snapshot: %v", want)
	}
	dangling := model(t, snap, "dangling").Versions[0]
	if dangling.Digest != "" || !strings.Contains(dangling.Problem, "model.onnx") {
		t.Errorf("version with a dangling link: digest %q, problem %q", dangling.Digest, dangling.Problem)
	}
}

func TestScanFailsWithoutItsRoot(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "models")
	_, err := repo.New([]string{missing}, repo.Options{}).Scan(t.Context(), nil)
	if errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), "--model-repository") {
		t.Errorf("Scan = %v", err)
	}
}

func TestScanEndsWithItsContext(t *testing.T) {
	root := tree(t, map[string]string{"m/config.pbtxt": config, "m/1/model.onnx": "m"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := repo.New([]string{root}, repo.Options{}).Scan(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Scan = %v", err)
	}
}

func TestDigestNamesContent(t *testing.T) {
	base := map[string]string{"m/config.pbtxt": config, "m/1/a": "12", "m/1/b": "3", "m/1/sub/c": ""}
	digest := func(edit func(files map[string]string)) string {
		files := make(map[string]string)
		for name, text := range base {
			files[name] = text
		}
		edit(files)
		return model(t, scan(t, repo.New([]string{tree(t, files)}, repo.Options{})), "m").Versions[0].Digest
	}
	same := digest(func(map[string]string) {})
	if got := digest(func(f map[string]string) { f["m/config.pbtxt"] += "max_batch_size: 4"; f["m/labels.txt"] = "x" }); got != same {
		t.Error("the digest changes with files that are not loaded")
	}
	for name, edit := range map[string]func(map[string]string){
		"content":         func(f map[string]string) { f["m/1/a"] = "13" },
		"boundary":        func(f map[string]string) { f["m/1/a"], f["m/1/b"] = "1", "23" },
		"name":            func(f map[string]string) { delete(f, "m/1/a"); f["m/1/a2"] = "12" },
		"place":           func(f map[string]string) { delete(f, "m/1/sub/c"); f["m/1/c"] = "" },
		"additional file": func(f map[string]string) { f["m/1/d"] = "" },
		"warm-up file":    func(f map[string]string) { f["m/warmup/a"] = "12" },
		"initial state":   func(f map[string]string) { f["m/initial_state/a"] = "12" },
	} {
		if digest(edit) == same {
			t.Errorf("the digest does not change with %s", name)
		}
	}
}

func TestShallowScansOpenFilesAndReadNone(t *testing.T) {
	root := tree(t, map[string]string{"m/config.pbtxt": config, "m/1/a": "", "n/config.pbtxt": config, "n/1/a": "other"})
	if err := os.Truncate(filepath.Join(root, "m", "1", "a"), 1<<40); err != nil { // more than can be read
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(root, "n", "1", "b")); err != nil {
		t.Fatal(err)
	}
	snap := scan(t, repo.New([]string{root}, repo.Options{Shallow: true}))
	if v := model(t, snap, "m").Versions[0]; v.Problem != "" {
		t.Errorf("a large file: %s", v.Problem)
	}
	if v := model(t, snap, "n").Versions[0]; !strings.Contains(v.Problem, "no such file") {
		t.Errorf("a file that cannot be opened: %q", v.Problem)
	}
}

func TestCustomBatchingStrategyIsRefused(t *testing.T) {
	root := tree(t, map[string]string{
		"m/config.pbtxt": config, "m/1/model.onnx": "m", "m/1/batchstrategy.so": "ELF",
		"n/config.pbtxt": config, "n/1/model.onnx": "n", "n/batchstrategy.so": "ELF",
	})
	snap := scan(t, repo.New([]string{root}, repo.Options{}))
	for _, name := range []string{"m", "n"} {
		if got := model(t, snap, name).Problem; !strings.Contains(got, "set dynamic_batching") {
			t.Errorf("%s: problem %q does not say what to use instead", name, got)
		}
	}
}

func TestLoopOfLinksEnds(t *testing.T) {
	root := tree(t, map[string]string{"m/config.pbtxt": config, "m/1/model.onnx": "m"})
	if err := os.Symlink(filepath.Join(root, "m/1"), filepath.Join(root, "m/1/self")); err != nil {
		t.Fatal(err)
	}
	v := model(t, scan(t, repo.New([]string{root}, repo.Options{})), "m").Versions[0]
	if v.Problem == "" {
		t.Errorf("version with a loop has no problem, digest %s", v.Digest)
	}
}

func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, path, text)
	}
	return root
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func age(t *testing.T, path string, when time.Time) {
	t.Helper()
	if err := os.Chtimes(path, when, when); err != nil {
		t.Fatal(err)
	}
}

func scan(t *testing.T, s *repo.Scanner) *catalog.Snapshot {
	t.Helper()
	snap, err := s.Scan(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

func model(t *testing.T, snap *catalog.Snapshot, name string) catalog.Model {
	t.Helper()
	for _, m := range snap.Models {
		if m.Name == name {
			return m
		}
	}
	t.Fatalf("no model %s", name)
	return catalog.Model{}
}
