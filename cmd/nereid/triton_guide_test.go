package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nereid-serving/nereid/libs/testkit/guide"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

const tritonGuide = "../../docs/guides/from-triton.md"

// stateOf returns what a table of the guide says of a thing; empty for nothing.
func stateOf(rows []guide.Row, name string) string {
	i := slices.IndexFunc(rows, func(r guide.Row) bool { return r.Name == name })
	if i < 0 {
		return ""
	}
	return rows[i].State
}

// The guide has every flag of tritonserver, and says what the tests say of it.
func TestTheGuideHasEveryFlag(t *testing.T) {
	rows := guide.Rows(t, tritonGuide, "Flags")
	for _, f := range tritonFlags() {
		want := map[string][]string{effectNone: {"different"}, effectLater: {"absent"}, effectRefused: {"absent"}}[f.seen]
		if want == nil {
			want = []string{"same", "better", "different"}
		}
		if got := stateOf(rows, "--"+f.flag); !slices.Contains(want, got) {
			t.Errorf("the guide says that --%s is %q, want %v", f.flag, got, want)
		}
	}
	for _, row := range rows {
		name, own := strings.TrimPrefix(row.Name, "--"), []string{"--help", "--version", "poll", "text", "json", "local", "redis"}
		if !slices.Contains(catalog(), name) && !slices.Contains(own, row.Name) {
			t.Errorf("the guide has the flag %s, which is none of Triton's", row.Name)
		}
	}
}

// The guide has every call of the protocol.
func TestTheGuideHasEveryCall(t *testing.T) {
	rows := guide.Rows(t, tritonGuide, "Calls over gRPC")
	methods := inference.File_inference_v2_grpc_service_proto.Services().Get(0).Methods()
	for i := range methods.Len() {
		if name := string(methods.Get(i).Name()); stateOf(rows, name) == "" {
			t.Errorf("the guide lacks %s", name)
		}
	}
}

// The guide has every family under Triton's names that a server shows, and says of none that
// it is there which is not.
func TestTheGuideHasEveryMetric(t *testing.T) {
	rows := guide.Rows(t, tritonGuide, "Metrics")
	page, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := []string{ // by GPUs, which the machine of the page does not have
		"nv_gpu_utilization", "nv_gpu_memory_total_bytes", "nv_gpu_memory_used_bytes", "nv_gpu_power_usage", "nv_gpu_power_limit", "nv_energy_consumption",
	}
	for _, found := range regexp.MustCompile("(?m)^\\| `(nv_[a-z_]+)`").FindAllStringSubmatch(string(page), -1) {
		shown = append(shown, found[1])
	}
	for _, name := range shown {
		if stateOf(rows, name) == "" {
			t.Errorf("the guide lacks %s", name)
		}
	}
	for _, row := range rows {
		if strings.HasPrefix(row.Name, "nv_") && slices.Contains(shown, row.Name) != (row.State != "absent") {
			t.Errorf("the guide says that %s is %s", row.Name, row.State)
		}
	}
}

// The guide has every field of a configuration, by itself or by one that holds it.
func TestTheGuideHasEveryField(t *testing.T) {
	rows := guide.Rows(t, tritonGuide, "Fields of config.pbtxt")
	fields := map[string]bool{}
	var walk func(prefix string, m protoreflect.MessageDescriptor, covered bool)
	walk = func(prefix string, m protoreflect.MessageDescriptor, covered bool) {
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			name := prefix + string(f.Name())
			fields[name] = true
			held := covered || stateOf(rows, name) != ""
			nested := f.Message()
			if f.IsMap() {
				nested = f.MapValue().Message()
			}
			switch {
			case nested != nil && strings.Count(name, ".") < 6:
				walk(name+".", nested, held)
			case !held:
				t.Errorf("the guide lacks %s", name)
			}
		}
	}
	walk("", inference.File_inference_v2_model_config_proto.Messages().ByName("ModelConfig"), false)
	for _, row := range rows {
		if !fields[row.Name] {
			t.Errorf("the guide has the field %s, which is none", row.Name)
		}
	}
}
