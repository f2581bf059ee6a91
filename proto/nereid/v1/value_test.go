package nereidv1_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

var update = flag.Bool("update", false, "rewrite testdata")

// values has one full value of each kind, by the name of its golden file.
func values() map[string]nereidv1.Value {
	digits := &nereidv1.ModelRef{Name: "digits", Version: 1, Generation: 2}
	return map[string]nereidv1.Value{
		"model": &nereidv1.ModelValue{
			Schema: nereidv1.Schema, Name: "digits", Url: "file:///repo/digits",
			Config: &inference.ModelConfig{
				Name: "digits", Backend: "onnxruntime", MaxBatchSize: 8,
				Input: []*inference.ModelInput{{
					Name: "image", DataType: inference.DataType_TYPE_FP32, Dims: []int64{-1, 784},
				}},
				SchedulingChoice: &inference.ModelConfig_DynamicBatching{
					DynamicBatching: &inference.ModelDynamicBatching{MaxQueueDelayMicroseconds: 100},
				},
			},
			Versions: []*nereidv1.ModelVersion{
				{
					Version: 1, Generation: 2, Digest: "sha256:ab", Url: "file:///repo/digits/1",
					Desired: nereidv1.DesiredState_DESIRED_STATE_SERVE,
				},
				{
					Version: 2, Generation: 1, Url: "file:///repo/digits/2", Problem: "no model.onnx",
					Desired: nereidv1.DesiredState_DESIRED_STATE_UNLOADED,
				},
			},
			Labels: map[string]int64{"stable": 1, "canary": 2},
		},
		"model_problem": &nereidv1.ModelValue{
			Schema: nereidv1.Schema, Name: "broken", Url: "file:///repo/broken", Problem: "config.pbtxt: line 3: unknown field \"nmae\" <&>",
		},
		"assignment": &nereidv1.AssignmentValue{
			Schema: nereidv1.Schema, WorkerId: "w1", ModelsRevision: 12, LeaderEpoch: 3,
			Versions: []*nereidv1.AssignedVersion{{
				Model: digits,
				Groups: []*nereidv1.AssignedGroup{{
					Name: "digits_0", Kind: nereidv1.DeviceKind_DEVICE_KIND_GPU, Device: 1, Count: 2, Passive: true, HostPolicy: "gpu_1",
				}},
			}},
		},
		"worker": &nereidv1.WorkerValue{
			Schema: nereidv1.Schema, WorkerId: "w1", Epoch: 7, Address: "10.0.0.4:8101",
			Device: &nereidv1.WorkerDevice{
				Kind: nereidv1.DeviceKind_DEVICE_KIND_CPU, Number: 0, Name: "EPYC", MemoryBytes: 1 << 34,
			},
			MemoryUsedBytes: 1 << 20, Labels: map[string]string{"pool": "default"},
			ModelsRevision: 12, AssignmentRevision: 13,
			MemoryBudgetBytes: 1 << 33, Leaving: true, Version: "1.4.0",
		},
		"service": &nereidv1.ServiceValue{
			Schema: nereidv1.Schema, Id: "gw1", Epoch: 9, Address: "10.0.0.3:8100", Load: 0.5, AppliedRevision: 12, Version: "1.4.0",
		},
		"pool": &nereidv1.PoolValue{
			Schema: nereidv1.Schema, Name: "default", WorkerLabels: map[string]string{"pool": "default"}, Models: []string{"digits"},
		},
		"instances": &nereidv1.InstancesValue{
			Schema: nereidv1.Schema, WorkerId: "w1", Epoch: 7,
			Versions: []*nereidv1.WorkerVersion{{
				Model: digits, State: nereidv1.State_STATE_READY, MemoryBytes: 1 << 27, Cause: "instance digits_0_1: out of memory", Reason: "load_failed",
				Instances: []*nereidv1.WorkerInstance{{Slot: 4, Name: "digits_0_0", Device: "cpu", State: nereidv1.State_STATE_READY}},
				Groups:    []*nereidv1.AssignedGroup{{Name: "digits_0", Kind: nereidv1.DeviceKind_DEVICE_KIND_CPU, Count: 1}},
			}},
		},
		"attached": &nereidv1.AttachedValue{Schema: nereidv1.Schema, Epoch: 7, Workers: []uint64{3, 5}, IncompleteBefore: 6},
		"leader":   &nereidv1.LeaderValue{Schema: nereidv1.Schema, Holder: "r1", Epoch: 3, ModelsRevision: 12, Address: "10.0.0.7:8011", RateLimit: &nereidv1.RateLimit{Resources: []string{"r:2:1"}}},
		"policy":   &nereidv1.PolicyValue{Schema: nereidv1.Schema, Text: "version: 1\nanonymous: {}\n", Source: "/etc/nereid/policy.yaml"},
		"costs": &nereidv1.CostsValue{Schema: nereidv1.Schema, Versions: []*nereidv1.VersionCosts{{
			Version: 3, Digest: "sha256:abc", Costs: []*nereidv1.Cost{{Device: "gpu", Magnitude: 9, BatchSize: 4, Executions: 7, MeanNs: 1_500_000, Deviation: 0.25}},
		}}},
		"quota": &nereidv1.QuotaValue{Schema: nereidv1.Schema, Meters: []*nereidv1.QuotaMeter{{Name: "requests", Left: -2.5, AtUnixNs: 1_700_000_000_000_000_000}}},
		"setting": &nereidv1.SettingValue{
			Schema: nereidv1.Schema,
			Setting: &nereidv1.SettingValue_Trace{Trace: &nereidv1.TraceSettings{
				Settings: map[string]*nereidv1.TraceSettings_Value{"trace_level": {Values: []string{"TIMESTAMPS"}}},
			}},
		},
	}
}

// The files are what releases store: a line that changes needs a reader that
// still takes the old one.
func TestValuesAreStoredAsTheGoldenFilesSay(t *testing.T) {
	for name, value := range values() {
		t.Run(name, func(t *testing.T) {
			data, err := nereidv1.MarshalValue(value)
			if err != nil {
				t.Fatal(err)
			}
			var text bytes.Buffer
			if err := json.Indent(&text, data, "", "  "); err != nil {
				t.Fatal(err)
			}
			text.WriteByte('\n')
			compareGolden(t, name+".json", text.String())
		})
	}
}

func TestStoredValuesAreReadBack(t *testing.T) {
	for name, want := range values() {
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join("testdata", name+".json"))
			if err != nil {
				t.Fatal(err)
			}
			got := want.ProtoReflect().New().Interface().(nereidv1.Value)
			if err := nereidv1.UnmarshalValue(data, got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("value differs after it was read back (-want +got):\n%s", diff)
			}
		})
	}
}

// Fields that went are skipped, and those that stayed are read.
func TestEarlierValuesAreRead(t *testing.T) {
	for name, tc := range map[string]struct {
		into nereidv1.Value
		id   func(nereidv1.Value) string
	}{
		"worker":     {new(nereidv1.WorkerValue), func(v nereidv1.Value) string { return v.(*nereidv1.WorkerValue).GetWorkerId() }},
		"assignment": {new(nereidv1.AssignmentValue), func(v nereidv1.Value) string { return v.(*nereidv1.AssignmentValue).GetWorkerId() }},
		"pool":       {new(nereidv1.PoolValue), func(v nereidv1.Value) string { return v.(*nereidv1.PoolValue).GetName() }},
	} {
		data, err := os.ReadFile(filepath.Join("testdata", "earlier", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := nereidv1.UnmarshalValue(data, tc.into); err != nil || tc.id(tc.into) == "" {
			t.Errorf("%s is read as %v, %v", name, tc.into, err)
		}
	}
}

func TestEqualValuesHaveEqualBytes(t *testing.T) {
	value := values()["model"]
	first, err := nereidv1.MarshalValue(value)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 { // map order is random
		again, err := nereidv1.MarshalValue(proto.Clone(value).(nereidv1.Value))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(first, again) {
			t.Fatalf("bytes differ:\n%s\n%s", first, again)
		}
	}
}

func TestReaderTakesValuesOfTheNextRelease(t *testing.T) {
	var got nereidv1.LeaderValue
	err := nereidv1.UnmarshalValue([]byte(`{"schema":1,"holder":"r1","mood":{"good":true}}`), &got)
	if err != nil || got.GetHolder() != "r1" {
		t.Errorf("got %v, %v; want holder r1 and no error", &got, err)
	}
}

func TestValuesAreRefused(t *testing.T) {
	for name, tc := range map[string]struct{ data, want string }{
		"empty":          {``, "decode LeaderValue"},
		"not an object":  {`[]`, "decode LeaderValue"},
		"wrong type":     {`{"schema":1,"epoch":"x"}`, "epoch"},
		"without schema": {`{"holder":"r1"}`, "states no schema"},
		"newer schema":   {`{"schema":2}`, "schema 2 is newer than 1"},
	} {
		t.Run(name, func(t *testing.T) {
			err := nereidv1.UnmarshalValue([]byte(tc.data), new(nereidv1.LeaderValue))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v does not say %q", err, tc.want)
			}
		})
	}
	if _, err := nereidv1.MarshalValue(&nereidv1.LeaderValue{Holder: "r1"}); err == nil {
		t.Error("a value without schema was encoded")
	}
	if _, err := nereidv1.MarshalValue(&nereidv1.LeaderValue{Schema: nereidv1.Schema, Holder: "\xff"}); err == nil {
		t.Error("a string that is not UTF-8 was encoded")
	}
}

func FuzzUnmarshalValue(f *testing.F) {
	for _, value := range values() {
		data, err := nereidv1.MarshalValue(value)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var value nereidv1.ModelValue
		if nereidv1.UnmarshalValue(data, &value) != nil || value.GetSchema() != nereidv1.Schema {
			return
		}
		again, err := nereidv1.MarshalValue(&value)
		if err != nil {
			t.Fatalf("a value that was read cannot be written: %v", err)
		}
		var back nereidv1.ModelValue
		if err := nereidv1.UnmarshalValue(again, &back); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(&value, &back) {
			t.Errorf("value changed by a round trip:\n%v\n%v", &value, &back)
		}
	})
}

// compareGolden compares text with a file under testdata, or rewrites it.
func compareGolden(t *testing.T, file, text string) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; run the test with -update", err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("%s differs (-want +got); run the test with -update if every line is meant:\n%s", path, diff)
	}
}
