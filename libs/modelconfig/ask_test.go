package modelconfig_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// asked loads a Python model's configuration, and has the model answer.
func asked(text string, answer func(*inference.ModelConfig) ([]byte, error)) (*inference.ModelConfig, error) {
	return modelconfig.Load([]byte(text), modelconfig.Directory{
		Name: "m", Files: []string{"model.py"}, File: "config.pbtxt", Backends: []string{"python"},
		Complete: &modelconfig.Completion{
			Versions: []int64{3, 12}, MaxBatchSize: 4,
			Ask: func(version int64, config []byte, _ bool) ([]byte, error) {
				if version != 12 {
					return nil, errors.New("another version was asked")
				}
				c := new(inference.ModelConfig)
				if err := protojson.Unmarshal(config, c); err != nil {
					return nil, err
				}
				return answer(c)
			},
		},
	})
}

// edited has a model change its configuration as the text says.
func edited(text string) func(*inference.ModelConfig) ([]byte, error) {
	return func(c *inference.ModelConfig) ([]byte, error) {
		err := prototext.UnmarshalOptions{}.Unmarshal([]byte(prototext.Format(c)+text), c)
		return modelconfig.JSON(c), err
	}
}

const (
	xyTensors = `input { name: "x" data_type: TYPE_FP32 dims: 4 } output { name: "y" data_type: TYPE_FP32 dims: 4 } `
	zInput    = `input { name: "z" data_type: TYPE_INT32 dims: [ -1 ] optional: true } `
)

func TestModelsCompleteTheirOwnConfigurations(t *testing.T) {
	batches := func(c *inference.ModelConfig) ([]byte, error) {
		c.SchedulingChoice = &inference.ModelConfig_DynamicBatching{DynamicBatching: new(inference.ModelDynamicBatching)}
		return modelconfig.JSON(c), nil
	}
	for name, tt := range map[string]struct {
		text   string
		answer func(*inference.ModelConfig) ([]byte, error)
		want   string
	}{
		"nothing is given":    {"", edited(xyTensors + "max_batch_size: 8 dynamic_batching { }"), xyTensors + "max_batch_size: 8 dynamic_batching { preferred_batch_size: 8 }"},
		"one is added":        {xyTensors, edited(zInput), xyTensors + zInput},
		"the policy":          {xyTensors, edited("model_transaction_policy { decoupled: true }"), xyTensors + "model_transaction_policy { decoupled: true }"},
		"the model has none":  {"", edited(""), ""},
		"all is given":        {xyTensors + "max_batch_size: 2", edited(""), xyTensors + "max_batch_size: 2"},
		"a scheduler is set":  {xyTensors + "max_batch_size: 2", batches, xyTensors + "max_batch_size: 2 dynamic_batching { }"},
		"a scheduler stays":   {xyTensors + "max_batch_size: 2 sequence_batching { }", batches, xyTensors + "max_batch_size: 2 sequence_batching { }"},
		"defaults were there": {xyTensors + "max_batch_size: 8 dynamic_batching { }", edited(""), xyTensors + "max_batch_size: 8 dynamic_batching { }"},
		"no other field":      {xyTensors, edited(`metric_tags { key: "a" value: "b" } parameters { key: "a" value { string_value: "b" } }`), xyTensors},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := asked(tt.text, tt.answer)
			if err != nil {
				t.Fatal(err)
			}
			want := new(inference.ModelConfig)
			if err := prototext.Unmarshal([]byte(tt.want), want); err != nil {
				t.Fatal(err)
			}
			modelconfig.Normalize(want, modelconfig.Directory{Name: "m", Files: []string{"model.py"}})
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("configuration (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTheModelSeesTheDefaults(t *testing.T) {
	var seen *inference.ModelConfig
	_, err := asked("max_batch_size: 2 dynamic_batching { } "+xyTensors, func(c *inference.ModelConfig) ([]byte, error) {
		seen = c
		return modelconfig.JSON(c), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen.GetName() != "m" || seen.GetBackend() != "python" || seen.GetDefaultModelFilename() != "model.py" ||
		len(seen.GetInstanceGroup()) != 1 || len(seen.GetDynamicBatching().GetPreferredBatchSize()) != 1 {
		t.Errorf("the model saw %v", seen)
	}
}

func TestWhatAModelAnswersIsChecked(t *testing.T) {
	say := func(text string) func(*inference.ModelConfig) ([]byte, error) {
		return func(*inference.ModelConfig) ([]byte, error) { return []byte(text), nil }
	}
	for name, tt := range map[string]struct {
		text   string
		answer func(*inference.ModelConfig) ([]byte, error)
		want   string
	}{
		"its own failure": {"", func(*inference.ModelConfig) ([]byte, error) {
			return nil, errs.New(errs.LoadFailed, "ValueError: boom")
		}, "12/model.py: ValueError: boom"},
		"no JSON":      {"", say("nothing"), "12/model.py: autofill failed for model 'm': the model's auto_complete_config gave no configuration: "},
		"a wrong type": {"", say(`{"max_batch_size": "many"}`), "12/model.py: autofill failed for model 'm': "},
		"an unknown field and a wrong dimension": {
			"", say(`{"foo": 1, "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [0]}]}`),
			"12/model.py: model input 'x' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m",
		},
		"an unknown datatype": {"", say(`{"input": [{"name": "x", "data_type": "TYPE_FOO", "dims": [1]}]}`), "12/model.py: model input 'x' must specify 'data_type' for m"},
		"what was wrong before": {
			`input { name: "x" data_type: TYPE_FP32 dims: 0 }`, edited(""), "config.pbtxt:1:40: model input 'x' dimension must be integer >= 1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := asked(tt.text, tt.answer)
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("error %v, want %s", err, tt.want)
			}
		})
	}
}

// TestNobodyIsAsked has inputs and outputs not count as missing where no worker
// may run the model, and others do without its answer.
func TestNobodyIsAsked(t *testing.T) {
	for name, complete := range map[string]*modelconfig.Completion{
		"no one to ask":  {Versions: []int64{1}},
		"no version":     {Ask: func(int64, []byte, bool) ([]byte, error) { return nil, errors.New("asked") }},
		"strict reading": {Versions: []int64{1}, Strict: true, Ask: func(int64, []byte, bool) ([]byte, error) { return nil, errors.New("asked") }},
	} {
		c, err := modelconfig.Load(nil, modelconfig.Directory{Name: "m", Files: []string{"model.py"}, Backends: []string{"python"}, Complete: complete})
		if err != nil || len(c.GetInput()) > 0 {
			t.Errorf("%s: %v, %v", name, c, err)
		}
	}
}

func TestJSONIsReadBack(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "triton", "seq.json"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := modelconfig.FromJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(text), string(modelconfig.JSON(c.Proto()))); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	if _, err := modelconfig.FromJSON([]byte("{")); errs.Of(err) != errs.ConfigInvalid {
		t.Errorf("half a text: %v", err)
	}
}

// TestPythonBasedBackendsComplete has workers asked for models of backends that are
// known by their names alone, or, where it is not known which there are, by none.
func TestPythonBasedBackendsComplete(t *testing.T) {
	for name, tt := range map[string]struct {
		there   []string
		text    string
		asked   bool
		runtime string
	}{
		"one that is there":         {[]string{"mine"}, `backend: "mine"`, true, "model.py"},
		"with its runtime":          {[]string{"mine"}, `backend: "mine" runtime: "model.py"`, true, "model.py"},
		"with inputs and outputs":   {[]string{"mine"}, `backend: "mine" ` + xyTensors, true, "model.py"},
		"of a name of Triton's":     {[]string{"vllm"}, `backend: "vllm"`, true, "model.py"},
		"one that is not there":     {[]string{"python"}, `backend: "mine"`, false, ""},
		"one that may be there":     {nil, `backend: "mine"`, true, ""},
		"one that is built in":      {[]string{"identity"}, `backend: "identity" ` + xyTensors, false, ""},
		"one that is nobody's here": {[]string{"python"}, `backend: "mine" ` + xyTensors, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			asked := false
			c, err := modelconfig.Load([]byte(tt.text), modelconfig.Directory{Name: "m", Backends: tt.there, Complete: &modelconfig.Completion{
				Versions: []int64{1},
				Ask: func(_ int64, config []byte, tensors bool) ([]byte, error) {
					asked = true
					if tensors && tt.there != nil {
						t.Error("asked for what code of the version adds")
					}
					return config, nil
				},
			}})
			if err != nil {
				t.Fatal(err)
			}
			if asked != tt.asked || c.GetRuntime() != tt.runtime {
				t.Errorf("asked: %v, want %v; runtime %q, want %q", asked, tt.asked, c.GetRuntime(), tt.runtime)
			}
		})
	}
}
