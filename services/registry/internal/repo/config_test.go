package repo_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
	"github.com/nereid-serving/nereid/services/registry/internal/repo"
)

func TestModelsWithoutConfigurationAreCompleted(t *testing.T) {
	add := string(onnxmodel.AddSub(tensor.FP32, "n", 16).Bytes())
	fixed := string(onnxmodel.AddSub(tensor.Int8, 3).Bytes())
	root := tree(t, map[string]string{
		"bare/1/model.onnx":             add,
		"part/config.pbtxt":             `max_batch_size: 9`,
		"part/1/model.onnx":             add,
		"directory/1/model.onnx/a.bin":  "weights",
		"newest/9/model.onnx":           fixed,
		"newest/10/model.onnx":          add,
		"kept/config.pbtxt":             `version_policy { specific { versions: 9 } }`,
		"kept/9/model.onnx":             fixed,
		"kept/10/model.onnx":            "not read",
		"elsewhere/config.pbtxt":        `backend: "onnxruntime" default_model_filename: "net.onnx"`,
		"elsewhere/1/net.onnx":          fixed,
		"directory/1/model.onnx/x.onnx": "another",
	})
	write(t, filepath.Join(root, "directory/1/model.onnx/model.onnx"), fixed)
	snap := scan(t, repo.New([]string{root}, repo.Options{MaxBatchSize: 6}))
	got := make(map[string]int32)
	for _, m := range snap.Models {
		if m.Problem != "" {
			t.Errorf("%s: %s", m.Name, m.Problem)
		}
		if len(m.Config.GetInput()) != 2 || len(m.Config.GetOutput()) != 2 || m.Config.GetInput()[0].GetName() != "INPUT0" {
			t.Errorf("%s: inputs %v, outputs %v", m.Name, m.Config.GetInput(), m.Config.GetOutput())
		}
		got[m.Name] = m.Config.GetMaxBatchSize()
	}
	want := map[string]int32{"bare": 6, "part": 9, "newest": 6, "directory": 0, "kept": 0, "elsewhere": 0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("max_batch_size (-want +got):\n%s", diff)
	}
}

func TestStrictReadingTakesNothingFromModelFiles(t *testing.T) {
	add := string(onnxmodel.AddSub(tensor.FP32, 1).Bytes())
	root := tree(t, map[string]string{
		"bare/1/model.onnx": add, "part/config.pbtxt": "max_batch_size: 0", "part/1/model.onnx": add,
	})
	snap := scan(t, repo.New([]string{root}, repo.Options{Strict: true}))
	for name, want := range map[string]string{"bare": "config.pbtxt does not exist", "part": "the configuration has no 'input'"} {
		if m := model(t, snap, name); !strings.Contains(m.Problem, want) {
			t.Errorf("%s: problem %q, want %q", name, m.Problem, want)
		}
	}
}

func TestNamedConfigurationGoesFirst(t *testing.T) {
	root := tree(t, map[string]string{
		"has/config.pbtxt": config, "has/configs/fast.pbtxt": config + "max_batch_size: 8", "has/1/model.onnx": "m",
		"lacks/config.pbtxt": config, "lacks/1/model.onnx": "m",
		"wrong/config.pbtxt": config, "wrong/configs/fast.pbtxt": "max_batch_size: x", "wrong/1/model.onnx": "m",
	})
	snap := scan(t, repo.New([]string{root}, repo.Options{ConfigName: "fast"}))
	if got := model(t, snap, "has").Config.GetMaxBatchSize(); got != 8 {
		t.Errorf("max_batch_size = %d, want that of configs/fast.pbtxt", got)
	}
	if m := model(t, snap, "lacks"); m.Problem != "" {
		t.Errorf("a model without the named configuration: %s", m.Problem)
	}
	if m := model(t, snap, "wrong"); !strings.HasPrefix(m.Problem, "configs/fast.pbtxt:1:17: ") {
		t.Errorf("problem %q does not name the file", m.Problem)
	}
}

func TestProblemsKeepTheirPlaces(t *testing.T) {
	root := tree(t, map[string]string{
		"a/config.pbtxt": "backend: \"onnxruntime\"\nmax_batch_size: -1\nnmae: \"a\"\n", "a/1/model.onnx": "damaged",
		"twice/config.pbtxt": config,
	})
	snap := scan(t, repo.New([]string{root, tree(t, map[string]string{"twice/config.pbtxt": config})}, repo.Options{}))
	var got []string
	for _, p := range model(t, snap, "a").Problems {
		got = append(got, p.Place()+" "+p.Field)
	}
	want := []string{"config.pbtxt:2:1 max_batch_size", "config.pbtxt:3:1 nmae", "1/model.onnx "}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("places (-want +got):\n%s", diff)
	}
	twice := model(t, snap, "twice")
	if p := twice.Problems; len(p) != 1 || !strings.HasPrefix(p[0].Message, "model appears in two or more repositories: rename or remove") {
		t.Errorf("problems of a model in two repositories: %v", p)
	}
	if twice.Problem != "model appears in two or more repositories" { // what the index says is compared by tests of Triton's users
		t.Errorf("problem of a model in two repositories: %q", twice.Problem)
	}
}

// species gives n names in lines, of 30 bytes each and as hard to compress as
// names are.
func species(n int) string {
	const syllables = "bacademonirulosatigupebro"
	var text strings.Builder
	state := uint32(1)
	for range n {
		for range 14 {
			state = state*1664525 + 1013904223
			at := state >> 16 % 12 * 2
			text.WriteString(syllables[at : at+2])
		}
		text.WriteString("s\n")
	}
	return text.String()
}

func TestClassLabelsAreRead(t *testing.T) {
	labelled := config +
		`output { name: "z" data_type: TYPE_FP32 dims: 2 label_filename: "labels.txt" }`
	root := tree(t, map[string]string{
		"some/config.pbtxt": labelled, "some/labels.txt": "cat\ndog\n", "some/1/model.onnx": "m",
		"many/config.pbtxt": labelled, "many/labels.txt": species(21_843), "many/1/model.onnx": "m",
		"packed/config.pbtxt": labelled, "packed/labels.txt": species(60_000), "packed/1/model.onnx": "m",
		"million/config.pbtxt": labelled, "million/labels.txt": strings.Repeat("class\n", 1_000_000), "million/1/model.onnx": "m",
		"none/config.pbtxt": labelled, "none/1/model.onnx": "m",
		"folder/config.pbtxt": labelled, "folder/labels.txt/x": "", "folder/1/model.onnx": "m",
	})
	snap := scan(t, repo.New([]string{root}, repo.Options{}))
	for name, want := range map[string]string{"some": "cat\ndog\n", "many": species(21_843)} {
		m := model(t, snap, name)
		labels, err := modelconfig.UnpackLabels(m.Labels["z"])
		if got := strings.Join(labels, "\n") + "\n"; err != nil || got != want {
			t.Errorf("%s: %d bytes of labels, %v, problem %q", name, len(got), err, m.Problem)
		}
	}
	for name, want := range map[string]string{
		"million": "label file 'labels.txt' cannot be read: it has more than 2097152 bytes", "packed": "bytes compressed, more than 327680", "none": "label file 'labels.txt' does not exist", "folder": "it is not a regular file",
	} {
		if m := model(t, snap, name); !strings.Contains(m.Problem, want) {
			t.Errorf("%s: problem %q, want %q", name, m.Problem, want)
		}
	}
}
