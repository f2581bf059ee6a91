package python_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/python"
)

// completed has a model whose class has these lines complete a configuration.
func completed(ctx context.Context, t *testing.T, timeout, lines, config string) (*modelconfig.Config, error) {
	t.Helper()
	driver := python.Driver(python.Deps{Log: zap.NewNop(), Metrics: prometheus.NewRegistry()})
	b, err := driver.Open(backend.Environment{
		Settings: map[string]string{"python-path": interpreter(t), "stub-timeout-seconds": timeout}, Pool: tensor.NewPool(1 << 20),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "1", "model.py"), "import os, time\nclass TritonPythonModel:\n    @staticmethod\n"+lines)
	c, err := modelconfig.FromJSON([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	text, err := b.(backend.Completer).Complete(ctx, backend.Version{
		Ref: infer.ModelRef{Name: "m", Version: 1}, Config: c, ModelDir: dir, Dir: filepath.Join(dir, "1"),
	})
	if err != nil {
		return nil, err
	}
	return modelconfig.FromJSON(text)
}

const plainConfig = `{"name": "m", "backend": "python", "max_batch_size": 4, "parameters": {"a": {"string_value": "b"}}}`

func TestWhatModelsCompleteIsWhatTheySay(t *testing.T) {
	c, err := completed(t.Context(), t, "120", `    def auto_complete_config(config):
        print("output of the model")
        assert config.as_dict()["parameters"]["a"]["string_value"] == "b"
        config.set_max_batch_size(8)
        config.set_dynamic_batching()
        config.set_model_transaction_policy({"decoupled": True})
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [-1, 9007199254740993], "optional": True})
        config.add_output({"name": "Y", "data_type": "TYPE_STRING", "dims": [1]})
        return config
`, plainConfig)
	if err != nil {
		t.Fatal(err)
	}
	if x, y := c.Input("X"), c.Output("Y"); c.MaxBatchSize != 8 || c.Batching == nil || !c.Decoupled || x == nil || y == nil ||
		!x.Optional || x.Datatype != tensor.FP32 || x.Dims[1] != 9007199254740993 || y.Datatype != tensor.Bytes {
		t.Errorf("completed to %+v", c)
	}
	c, err = completed(t.Context(), t, "120", "    def another(config): pass\n", plainConfig)
	if err != nil || c.MaxBatchSize != 4 || len(c.Inputs) > 0 {
		t.Errorf("without auto_complete_config: %+v, %v", c, err)
	}
}

func TestAFailureToCompleteHasItsCause(t *testing.T) {
	for name, tt := range map[string]struct{ timeout, code, want string }{
		"an exception":      {"120", `raise ValueError("boom é")`, "ValueError: boom é"},
		"another's rule":    {"120", `config.set_max_batch_size(2)`, "configuration specified max_batch_size 4, but in auto-complete-config function for model 'm' specified max_batch_size 2"},
		"nothing":           {"120", `return None`, "auto_complete_config function in model 'm' must return a valid pb.ModelConfig object."},
		"an end":            {"120", `os._exit(3)`, "it ended with exit status 3"},
		"a wait":            {"1", `time.sleep(3600)`, "raise --backend-config=python,stub-timeout-seconds"},
		"what is no Python": {"120", `return (`, "SyntaxError"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := completed(t.Context(), t, tt.timeout, "    def auto_complete_config(config):\n        "+tt.code+"\n", plainConfig)
			if errs.Of(err) != errs.LoadFailed || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %s", err, tt.want)
			}
		})
	}
}

func TestCompletingEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := completed(ctx, t, "120", "    def auto_complete_config(config):\n        time.sleep(3600)\n", plainConfig); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
