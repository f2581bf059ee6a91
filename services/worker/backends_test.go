package worker

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/errs"
)

func TestBackendsThatAreDescribedAsBuiltInOpen(t *testing.T) {
	if diff := cmp.Diff(backends.BuiltIn(), Backends()); diff != "" {
		t.Errorf("backends (-described +with a driver):\n%s", diff)
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
		"of one that has none":   {settings: []string{"echo,a=b"}, refused: true},
		"of all":                 {settings: []string{",default-max-batch-size=8"}},
		"of all, which have not": {settings: []string{",threads=2"}, refused: true},
		"without a backend":      {settings: []string{"threads=2"}, refused: true},
		"of those that are not there": {
			settings: []string{"tensorrt,a=b", "mine,a=b"}, unused: []string{"mine", "tensorrt"},
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
