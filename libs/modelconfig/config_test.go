package modelconfig_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

func TestFromProtoFillsInAndConverts(t *testing.T) {
	config := parse(t, `
		name: "m" backend: "onnxruntime" max_batch_size: 16
		input { name: "x" data_type: TYPE_FP16 dims: [ 2, -1 ] reshape { shape: [ 1, 2, -1 ] } optional: true }
		output { name: "y" data_type: TYPE_STRING dims: 1 reshape { } label_filename: "labels.txt" }
		dynamic_batching {
			preferred_batch_size: [ 8, 4, 8 ] max_queue_delay_microseconds: 500
			priority_levels: 2 default_priority_level: 1
			default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 7 max_queue_size: 5 }
			priority_queue_policy { key: 2 value { allow_timeout_override: true } }
		}
		parameters { key: "p" value { string_value: "v" } }
		metric_tags { key: "team" value: "vision" }
		model_metrics { metric_control [{ metric_identifier { family: "f" } histogram_options { buckets: [ 1, 2.5 ] } }] }
		optimization { graph { level: -1 } }
		model_transaction_policy { decoupled: true }
		model_warmup { name: "skipped" }
		model_warmup {
			name: "w" batch_size: 2
			inputs { key: "x" value { data_type: TYPE_FP16 dims: [ 2, 8 ] random_data: true } }
			inputs { key: "file" value { data_type: TYPE_STRING dims: 1 input_data_file: "a/b" } }
			inputs { key: "zero" value { data_type: TYPE_BOOL zero_data: true } }
		}
		instance_group { kind: KIND_GPU gpus: [ 1 ] count: 2 host_policy: "near" passive: true }`)
	before := proto.CloneOf(config)
	got, err := modelconfig.FromProto(config)
	if err != nil {
		t.Fatal(err)
	}
	want := &modelconfig.Config{
		Name: "m", Platform: "onnxruntime_onnx", Backend: "onnxruntime", MaxBatchSize: 16, Filename: "model.onnx",
		Inputs: []modelconfig.IO{{
			Name: "x", Datatype: tensor.FP16, Dims: tensor.Shape{2, -1},
			Reshape: tensor.Shape{1, 2, -1}, HasReshape: true, Optional: true,
		}},
		Outputs: []modelconfig.IO{{
			Name: "y", Datatype: tensor.Bytes, Dims: tensor.Shape{1},
			Reshape: tensor.Shape{}, HasReshape: true, LabelFile: "labels.txt",
		}},
		Batching: &modelconfig.DynamicBatching{
			PreferredSizes: []int64{4, 8}, MaxQueueDelayMicros: 500, PriorityLevels: 2, DefaultPriority: 1,
			DefaultPolicy: modelconfig.QueuePolicy{Delay: true, DefaultTimeoutMicros: 7, MaxQueueSize: 5},
			Policies:      map[uint64]modelconfig.QueuePolicy{2: {AllowTimeoutOverride: true}},
		},
		Decoupled: true, GraphLevel: -1,
		Groups: []modelconfig.InstanceGroup{{
			Name: "m_0", Kind: modelconfig.KindGPU, Count: 2, GPUs: []int32{1}, HostPolicy: "near", Passive: true, Priority: 1,
		}},
		Parameters: map[string]string{"p": "v"},
		MetricTags: map[string]string{"team": "vision"}, HistogramBuckets: map[string][]float64{"f": {1, 2.5}},
		Warmup: []modelconfig.WarmupSample{{
			Name: "w", BatchSize: 2, Count: 1,
			Inputs: []modelconfig.WarmupInput{
				{Name: "file", Datatype: tensor.Bytes, Dims: tensor.Shape{1}, Kind: modelconfig.WarmupFile, File: "a/b"},
				{Name: "x", Datatype: tensor.FP16, Dims: tensor.Shape{2, 8}, Kind: modelconfig.WarmupRandom},
				{Name: "zero", Datatype: tensor.Bool},
			},
		}},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(modelconfig.Config{})); diff != "" {
		t.Errorf("FromProto (-want +got):\n%s", diff)
	}
	if !proto.Equal(before, config) {
		t.Error("FromProto changed its argument")
	}
	modelconfig.Normalize(before, modelconfig.Directory{Name: "m"})
	if !proto.Equal(before, got.Proto()) {
		t.Errorf("Proto is %v, want the normalized configuration", got.Proto())
	}
	if got.Inputs[0].BackendDims().String() != "[1,2,-1]" || got.ClientShape(got.Input("x")).String() != "[-1,2,-1]" {
		t.Errorf("backend sees %v, clients %v", got.Inputs[0].BackendDims(), got.ClientShape(got.Input("x")))
	}
}

func TestPrioritiesWithoutLevelsAreNone(t *testing.T) {
	view, err := modelconfig.FromProto(parse(t, `
		name: "m" backend: "echo" max_batch_size: 2
		input { name: "x" data_type: TYPE_INT8 dims: 1 } output { name: "y" data_type: TYPE_INT8 dims: 1 }
		dynamic_batching { default_priority_level: 3 priority_queue_policy { key: 9 value { max_queue_size: 1 } } }`))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&modelconfig.DynamicBatching{PreferredSizes: []int64{2}}, view.Batching); diff != "" {
		t.Errorf("batching (-want +got):\n%s", diff)
	}
}

func TestFromProtoKeepsNothingOfItsArgument(t *testing.T) {
	config := parse(t, `name: "m" backend: "echo" input { name: "x" data_type: TYPE_INT8 dims: 1 } output { name: "y" data_type: TYPE_INT8 dims: 1 }`)
	view, err := modelconfig.FromProto(config)
	if err != nil {
		t.Fatal(err)
	}
	config.Input[0].Dims[0] = 9
	if view.Inputs[0].Dims[0] != 1 {
		t.Error("the view changed with the message")
	}
}

func TestFromProtoRefusesWhatIsNotValid(t *testing.T) {
	for _, config := range []*inference.ModelConfig{nil, {}, {Name: "m", Backend: "echo", MaxBatchSize: -1}} {
		if _, err := modelconfig.FromProto(config); errs.Of(err) != errs.ConfigInvalid {
			t.Errorf("FromProto(%v) = %v", config, err)
		}
	}
}

func TestEngineIsFoundByWhatIsGiven(t *testing.T) {
	tests := []struct {
		name, text         string
		files              []string
		backend, file, leg string
	}{
		{"backend alone", `backend: "python"`, nil, "python", "model.py", ""},
		{"platform alone", `platform: "tensorrt_plan"`, nil, "tensorrt", "model.plan", "tensorrt_plan"},
		{"platform alias", `platform: "libtorch"`, nil, "pytorch", "model.pt", "libtorch"},
		{"shared backend by file", `backend: "pytorch"`, []string{"model.pt2"}, "pytorch", "model.pt2", "torch_aoti"},
		{"shared backend without file", `backend: "pytorch"`, nil, "pytorch", "model.pt", "pytorch_libtorch"},
		{"file alone", ``, []string{"a.txt", "model.onnx"}, "onnxruntime", "model.onnx", "onnxruntime_onnx"},
		{"own file name stays", `backend: "onnxruntime" default_model_filename: "net.onnx"`, nil, "onnxruntime", "net.onnx", "onnxruntime_onnx"},
		{"unknown backend", `backend: "mine"`, []string{"model.onnx"}, "mine", "", ""},
		{"nothing", ``, nil, "", "", ""},
		{"ensemble has none", `platform: "ensemble"`, []string{"model.onnx"}, "", "", "ensemble"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := parse(t, tt.text)
			modelconfig.Normalize(c, modelconfig.Directory{Name: "m", Files: tt.files})
			got := []string{c.GetBackend(), c.GetDefaultModelFilename(), c.GetPlatform()}
			if diff := cmp.Diff([]string{tt.backend, tt.file, tt.leg}, got); diff != "" {
				t.Errorf("backend, file, platform (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSelectVersions(t *testing.T) {
	available := []int64{3, 1, 10, 2}
	tests := []struct {
		name, policy      string
		selected, missing []int64
	}{
		{"no policy keeps the latest", ``, []int64{10}, nil},
		{"latest two", `latest { num_versions: 2 }`, []int64{3, 10}, nil},
		{"latest of more than there are", `latest { num_versions: 4294967295 }`, []int64{1, 2, 3, 10}, nil},
		{"all", `all { }`, []int64{1, 2, 3, 10}, nil},
		{"specific in order, once", `specific { versions: [ 10, 1, 10, 7 ] }`, []int64{1, 10}, []int64{7}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			policy := new(inference.ModelVersionPolicy)
			if err := prototext.Unmarshal([]byte(tt.policy), policy); err != nil {
				t.Fatal(err)
			}
			selected, missing := modelconfig.SelectVersions(policy, available)
			if diff := cmp.Diff([][]int64{tt.selected, tt.missing}, [][]int64{selected, missing}); diff != "" {
				t.Errorf("selected, missing (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTooLongText(t *testing.T) {
	_, err := modelconfig.Parse(make([]byte, modelconfig.MaxText+1))
	if errs.Of(err) != errs.ConfigInvalid {
		t.Errorf("Parse = %v", err)
	}
}

func parse(t *testing.T, text string) *inference.ModelConfig {
	t.Helper()
	config, err := modelconfig.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return config
}
