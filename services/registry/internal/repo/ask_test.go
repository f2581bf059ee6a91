package repo_test

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/registry/internal/repo"
)

// code is a worker that sets max_batch_size, and keeps what it was asked.
type code struct {
	mu    sync.Mutex
	asked []control.Draft // guarded by mu
	fail  error
}

func (c *code) ask(_ context.Context, d control.Draft) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, d)
	if c.fail != nil {
		return nil, c.fail
	}
	return bytes.Replace(d.Config, []byte(`"max_batch_size":0`), []byte(`"max_batch_size":8`), 1), nil
}

const completing = "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(c):\n        return c\n"

func pythonScanner(t *testing.T, worker *code, files map[string]string) (*repo.Scanner, string) {
	root := tree(t, files)
	return repo.New([]string{root}, repo.Options{Backends: []string{"python"}, Ask: worker.ask}), root
}

func TestModelsAreAskedForTheirConfigurations(t *testing.T) {
	const tensors = `backend: "python" input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name: "y" data_type: TYPE_FP32 dims: 1 }`
	worker := new(code)
	s, root := pythonScanner(t, worker, map[string]string{
		"bare/1/model.py": completing,
		// Neither is there any code to ask, nor anything to ask for.
		"whole/config.pbtxt": tensors, "whole/1/model.py": "class TritonPythonModel: pass\n",
		"beside/config.pbtxt": tensors, "beside/1/model.py": "from .base import TritonPythonModel\n", "beside/1/base.py": completing,
		"lacks/1/model.py": "from elsewhere import TritonPythonModel\n",
	})
	snap := scan(t, s)
	got := make(map[string]int32)
	for _, m := range snap.Models {
		if m.Problem != "" {
			t.Errorf("%s: %s", m.Name, m.Problem)
		}
		got[m.Name] = m.Config.GetMaxBatchSize()
	}
	if diff := cmp.Diff(map[string]int32{"bare": 8, "whole": 0, "beside": 8, "lacks": 8}, got); diff != "" {
		t.Errorf("max_batch_size (-want +got):\n%s", diff)
	}
	for _, d := range worker.asked {
		dir := "file://" + filepath.Join(root, d.Model.Name)
		config, err := modelconfig.FromJSON(d.Config)
		if err != nil || config.Name != d.Model.Name || d.Model.Version != 1 || d.ModelURL != dir || d.URL != dir+"/1" || !strings.HasPrefix(d.Digest, "sha256:") {
			t.Errorf("asked %+v: %v", d, err)
		}
	}
}

// TestAnswersAreKept has one content be asked once with one configuration, and what
// failed once more when somebody asks for the model.
func TestAnswersAreKept(t *testing.T) {
	worker := new(code)
	s, root := pythonScanner(t, worker, map[string]string{"m/1/model.py": completing})
	expect := func(when string, asked int, problem string) {
		t.Helper()
		m := model(t, scan(t, s), "m")
		if len(worker.asked) != asked || !strings.HasPrefix(m.Problem, problem) || (m.Problem == "") != (problem == "") {
			t.Errorf("%s: asked %d times, problem %q; want %d, %q", when, len(worker.asked), m.Problem, asked, problem)
		}
	}
	expect("at first", 1, "")
	expect("again", 1, "")
	write(t, filepath.Join(root, "m/config.pbtxt"), `version_policy { all { } }`)
	expect("with another configuration", 2, "")
	worker.fail = errs.New(errs.LoadFailed, "ValueError: boom")
	write(t, filepath.Join(root, "m/1/model.py"), completing+"# changed\n")
	expect("with other code", 3, "1/model.py: ValueError: boom")
	expect("after a failure", 3, "1/model.py: ValueError: boom")
	worker.fail = nil
	if m, _, err := s.Model(t.Context(), infer.ModelID{Name: "m"}, nil); err != nil || m.Problem != "" {
		t.Errorf("asked by name: %v, %q", err, m.Problem)
	}
	expect("after that", 4, "")
}

// TestNoWorkerIsNoFailure has what could not be asked be asked again.
func TestNoWorkerIsNoFailure(t *testing.T) {
	for name, cause := range map[string]error{
		"no worker":                errs.New(errs.NoWorker, "nobody is there"),
		"files that were replaced": errs.New(errs.FilesChanged, "the files changed"),
	} {
		worker := &code{fail: cause}
		s, _ := pythonScanner(t, worker, map[string]string{"m/1/model.py": completing})
		m := model(t, scan(t, s), "m")
		if m.Problem != "1/model.py: "+errs.From(cause).Msg || m.Waiting != (errs.Of(cause) == errs.NoWorker) || m.Torn == m.Waiting {
			t.Errorf("%s: %+v", name, m)
		}
		worker.fail = nil
		if m := model(t, scan(t, s), "m"); m.Problem != "" || m.Waiting || m.Torn {
			t.Errorf("%s, later: %+v", name, m)
		}
	}
}

func TestStrictReadingAsksNobody(t *testing.T) {
	worker := new(code)
	root := tree(t, map[string]string{"m/1/model.py": completing, "m/config.pbtxt": `backend: "python"`})
	m := model(t, scan(t, repo.New([]string{root}, repo.Options{Backends: []string{"python"}, Ask: worker.ask, Strict: true})), "m")
	if m.Problem != "" || m.Config.GetMaxBatchSize() != 0 || len(worker.asked) > 0 {
		t.Errorf("%v, asked %d times", m, len(worker.asked))
	}
}

// TestGivenFilesAskWhomTheyAreGiven has the code of files that came with a load run
// only where that allows it.
func TestGivenFilesAskWhomTheyAreGiven(t *testing.T) {
	worker, other := new(code), new(code)
	s, root := pythonScanner(t, worker, map[string]string{"m/1/model.py": completing})
	for _, tt := range []struct {
		ask  repo.Ask
		want int32
	}{{nil, 0}, {other.ask, 8}} {
		m, err := s.Directory(t.Context(), infer.ModelID{Name: "given"}, filepath.Join(root, "m"), []byte(`backend: "python"`), tt.ask)
		if err != nil || m.Problem != "" || m.Config.GetMaxBatchSize() != tt.want {
			t.Errorf("max_batch_size %d, want %d: %v %q", m.Config.GetMaxBatchSize(), tt.want, err, m.Problem)
		}
	}
	if len(worker.asked) > 0 || len(other.asked) != 1 {
		t.Errorf("asked %d and %d times", len(worker.asked), len(other.asked))
	}
}
