package repo_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/registry/internal/repo"
)

func TestYoungFilesAreUnsettled(t *testing.T) {
	long := time.Now().Add(-time.Hour)
	tests := map[string]struct {
		touched string
		at      time.Time
		want    bool
	}{
		"nothing for an hour":     {"", long, false},
		"the model file now":      {"m/1/model.onnx", time.Now(), true},
		"the configuration now":   {"m/config.pbtxt", time.Now(), true},
		"a file deep down now":    {"m/1/deep/data.bin", time.Now(), true},
		"a clock a little ahead":  {"m/1/model.onnx", time.Now().Add(time.Second), true},
		"a time of another epoch": {"m/1/model.onnx", time.Now().Add(24 * time.Hour), false},
		"a version left out":      {"m/0/model.onnx", time.Now(), false},
		"the labels now":          {"m/labels.txt", time.Now(), true},
		"a warm-up file now":      {"m/warmup/x", time.Now(), true},
		"a file beside it now":    {"m/notes.txt", time.Now(), false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{
				"m/config.pbtxt": config + `output { name: "l" data_type: TYPE_FP32 dims: 2 label_filename: "labels.txt" }`,
				"m/0/model.onnx": "o", "m/1/model.onnx": "m", "m/1/deep/data.bin": "d", "m/labels.txt": "cat", "m/warmup/x": "x", "m/notes.txt": "n",
			}
			root := tree(t, files)
			for file := range files {
				age(t, filepath.Join(root, file), long)
			}
			if tt.touched != "" {
				age(t, filepath.Join(root, tt.touched), tt.at)
			}
			m := model(t, scan(t, repo.New([]string{root}, repo.Options{FileQuietPeriod: 10 * time.Minute})), "m")
			if m.Changing != tt.want || m.Torn || m.Problem != "" {
				t.Errorf("unsettled %t, torn %t, problem %q; want unsettled %t", m.Changing, m.Torn, m.Problem, tt.want)
			}
		})
	}
}

func TestModelsAreReadOneByOne(t *testing.T) {
	root := tree(t, map[string]string{"m/config.pbtxt": config, "m/1/model.onnx": "m", "n/config.pbtxt": "broken", "n/1/f": ""})
	s := repo.New([]string{root}, repo.Options{})
	snap, err := s.Scan(t.Context(), func(id infer.ModelID) bool { return id.Name == "m" })
	if err != nil {
		t.Fatal(err)
	}
	if m, n := snap.Models[0], snap.Models[1]; len(m.Versions) != 1 || n.Name != "n" || n.Problem != "" || n.Config != nil || n.URL == "" {
		t.Errorf("scan of m alone: %v and %v", m, n)
	}
	m, found, err := s.Model(t.Context(), infer.ModelID{Name: "m"}, []byte("max_batch_size: 3\n"+config))
	if err != nil || !found || m.Config.GetMaxBatchSize() != 3 || !m.Overridden || len(m.Versions) != 1 {
		t.Errorf("m with another configuration: %v, found %t, %v", m, found, err)
	}
	m, _, err = s.Model(t.Context(), infer.ModelID{Name: "m"}, []byte("max_batchsize: 3"))
	if err != nil || !strings.Contains(m.Problem, "config override") {
		t.Errorf("m with a broken configuration: %v, %v", m, err)
	}
	if _, found, err := s.Model(t.Context(), infer.ModelID{Name: "nosuch"}, nil); found || err != nil {
		t.Errorf("a model that is not there: found %t, %v", found, err)
	}
	m, err = s.Directory(t.Context(), infer.ModelID{Name: "given"}, filepath.Join(root, "m"), []byte(config), nil)
	if err != nil || m.Name != "given" || m.Problem != "" || m.URL != "file://"+filepath.Join(root, "m") {
		t.Errorf("a directory of another name: %v, %v", m, err)
	}
}

func TestOneModelsTroubleIsNotTheOthers(t *testing.T) {
	root := tree(t, map[string]string{
		"good/config.pbtxt": config, "good/1/model.onnx": "m",
		"good/1/notes/a b/ü.txt": "junk", "good/.git/objects/x": "junk", "good/docs/readme": "junk",
		"directory/config.pbtxt": config, "directory/1/model.onnx/model.onnx": "m", "directory/1/model.onnx/weights": "w",
		"empty/.keep":           "",
		"dangling/config.pbtxt": config, "dangling/1/model.onnx": "m",
		"linked-config/1/model.onnx": "m",
		"späm & eggs/config.pbtxt":   config, "späm & eggs/1/model.onnx": "m",
		"per%cent/config.pbtxt": config, "per%cent/1/model.onnx": "m",
	})
	for link, to := range map[string]string{
		"dangling/1/weights":         "nowhere",
		"linked-config/config.pbtxt": "nowhere",
		"linked":                     "good",
		"nowhere":                    "no-such-directory",
	} {
		if err := os.Symlink(filepath.Join(root, to), filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	got := make(map[string]string)
	for _, m := range scan(t, repo.New([]string{root}, repo.Options{Strict: true})).Models {
		got[m.Name] = m.Problem
		for _, v := range m.Versions {
			got[m.Name] += v.Problem
		}
	}
	for name, want := range map[string]string{
		"good": "", "directory": "", "linked": "", "späm & eggs": "", "per%cent": "",
		"empty": "config.pbtxt does not exist", "dangling": "weights: no such file", "linked-config": "config.pbtxt does not exist",
		"nowhere": "is a link to what is not there",
	} {
		problem, found := got[name]
		if !found || (problem == "") != (want == "") || !strings.Contains(problem, want) {
			t.Errorf("%s: %q (found %t), want %q", name, problem, found, want)
		}
		delete(got, name)
	}
	if diff := cmp.Diff(map[string]string{}, got); diff != "" {
		t.Errorf("models that are none: %s", diff)
	}
}

func TestUnreadableFilesAreAProblem(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root reads all files")
	}
	root := tree(t, map[string]string{"m/config.pbtxt": config, "m/1/model.onnx": "m"})
	if err := os.Chmod(filepath.Join(root, "m/1/model.onnx"), 0); err != nil {
		t.Fatal(err)
	}
	if v := model(t, scan(t, repo.New([]string{root}, repo.Options{})), "m").Versions[0]; !strings.Contains(v.Problem, "permission denied") {
		t.Errorf("problem %q", v.Problem)
	}
}

func TestManyFilesAreRead(t *testing.T) {
	files := map[string]string{"m/config.pbtxt": config}
	for i := range 2000 {
		files[fmt.Sprintf("m/1/part-%04d", i)] = "x"
	}
	if v := model(t, scan(t, repo.New([]string{tree(t, files)}, repo.Options{Strict: true})), "m").Versions[0]; v.Problem != "" || v.Digest == "" {
		t.Errorf("version %+v", v)
	}
}
