package scaffold_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/scaffold"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/python"
)

func TestANewModelPassesItsTest(t *testing.T) {
	interpreter := os.Getenv("NEREID_PYTHON")
	if interpreter == "" {
		t.Skip("NEREID_PYTHON is not set")
	}
	repository, pkg := filepath.Join(t.TempDir(), "models"), t.TempDir()
	written, err := scaffold.Python(repository, "my-model")
	if err != nil || len(written) != 4 {
		t.Fatalf("wrote %v, %v", written, err)
	}
	for range 2 { // the second time over the first
		if err := scaffold.Package(python.Files(), pkg); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.CommandContext(t.Context(), interpreter, "-m", "unittest", "discover", "-s", ".")
	command.Dir, command.Env = filepath.Join(repository, "my-model"), append(os.Environ(), "PYTHONPATH="+pkg)
	out, err := command.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Ran 1 test") {
		t.Errorf("%v:\n%s", err, out)
	}
	readme, err := os.ReadFile(filepath.Join(repository, "my-model", "README.md"))
	if err != nil || !strings.HasPrefix(string(readme), "# my-model\n") || strings.Contains(string(readme), "NAME") {
		t.Errorf("README.md: %v\n%s", err, readme)
	}
}

func TestNothingIsWrittenOver(t *testing.T) {
	repository := t.TempDir()
	if _, err := scaffold.Python(repository, "m"); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(repository, "m", "1", "model.py")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := scaffold.Python(repository, "m"); errs.Of(err) != errs.AlreadyExists {
		t.Errorf("a second time: %v", err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "mine" {
		t.Errorf("the model is %q, %v", text, err)
	}
}

func TestNamesOfModels(t *testing.T) {
	for _, name := range []string{"", ".", "..", ".m", "-m", "a/b", `a\b`, "a b", "ä", "a\x00"} {
		if written, err := scaffold.Python(t.TempDir(), name); errs.Of(err) != errs.ConfigInvalid {
			t.Errorf("%q: %v, %v", name, written, err)
		}
	}
}
