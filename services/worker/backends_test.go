package worker

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/errs"
)

func TestBackendsThatAreDescribedAsBuiltInOpen(t *testing.T) {
	opened := backends.Hosted()
	for _, d := range drivers(Config{}, Deps{}, nil) {
		opened = append(opened, d.Name)
	}
	slices.Sort(opened)
	if diff := cmp.Diff(backends.BuiltIn(), opened); diff != "" {
		t.Errorf("backends (-described +with a driver):\n%s", diff)
	}
}

func TestPythonBasedBackendsAreFound(t *testing.T) {
	dir := t.TempDir()
	for _, file := range []string{"mine/model.py", "vllm/model.py", "identity/model.py", "empty/other.py", "odd/model.py/x"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(file)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	there, err := Backends(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := slices.Sorted(slices.Values(append(backends.BuiltIn(), "mine", "vllm")))
	if diff := cmp.Diff(want, there); diff != "" {
		t.Errorf("backends (-want +got):\n%s", diff)
	}
	c := Default()
	c.BackendDirectory, c.BackendConfig = dir, []string{"mine,stub-timeout-seconds=5", "vllm,default-max-batch-size=4", "nosuch,a=b"}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"nosuch"}, c.unusedSettings()); diff != "" {
		t.Errorf("unused settings (-want +got):\n%s", diff)
	}
	for _, change := range []func(*Config){
		func(c *Config) { c.BackendConfig = []string{"mine,stub-timeout-seconds=0"} },
		func(c *Config) { c.BackendDirectory = filepath.Join(dir, "nosuch") },
	} {
		wrong := c
		change(&wrong)
		if err := wrong.Validate(); errs.Of(err) != errs.ConfigInvalid {
			t.Errorf("Validate = %v, want config_invalid", err)
		}
	}
}

func TestSettingsOfBackends(t *testing.T) {
	for name, tt := range map[string]struct {
		settings []string
		unused   []string
		refused  bool
	}{
		"none":                   {},
		"of one that has them":   {settings: []string{"onnxruntime,intra_op_thread_count=2"}},
		"of one that has others": {settings: []string{"onnxruntime,threads=2"}, refused: true},
		"of plans":               {settings: []string{"tensorrt,coalesce-request-input=true"}},
		"of plugins":             {settings: []string{"tensorrt,plugins=a.so"}, refused: true},
		"of one that has none":   {settings: []string{"echo,a=b"}, refused: true},
		"of all":                 {settings: []string{",default-max-batch-size=8"}},
		"of all, which have not": {settings: []string{",threads=2"}, refused: true},
		"without a backend":      {settings: []string{"threads=2"}, refused: true},
		"of those that are not there": {
			settings: []string{"fil,a=b", "mine,a=b"}, unused: []string{"fil", "mine"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := Default()
			c.BackendConfig = tt.settings
			if err := c.Validate(); (err != nil) != tt.refused || err != nil && errs.Of(err) != errs.ConfigInvalid {
				t.Errorf("Validate = %v, want an error: %v", err, tt.refused)
			}
			if diff := cmp.Diff(tt.unused, c.unusedSettings()); diff != "" {
				t.Errorf("unused (-want +got):\n%s", diff)
			}
		})
	}
}
