package diagnostics_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/diagnostics"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// dictionary has a correction of each kind.
func dictionary() diagnostics.Dictionary {
	return diagnostics.Dictionary{
		Corrections: []diagnostics.Correction{
			{In: "*", Name: "shape", Meant: "dims"},
			{Name: "batch_size", Meant: "max_batch_size"},
			{Name: "decoupled", Fix: "write  model_transaction_policy { decoupled: true }"},
			{In: "instance_group", Name: "device", Meant: "kind", Fix: "did you mean kind, or gpus?"},
			{In: "model_repository_agents.agents", Name: "label", Meant: "name"},
		},
		Alias: func(name string) string {
			if name == "FLOAT" {
				return "TYPE_FP32"
			}
			return ""
		},
	}
}

// TestReadings reads the texts of testdata/readings.txt and compares what is found
// in them, and how they are repaired, with what stands there behind them. Run with
// -args -update to write it again.
func TestReadings(t *testing.T) {
	const path, between = "testdata/readings.txt", "\n====\n"
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var updated []string
	for block := range strings.SplitSeq(strings.TrimSuffix(string(file), "\n"), between) {
		text, want, _ := strings.Cut(block, "\n----\n")
		name, text, _ := strings.Cut(text, "\n")
		t.Run(name, func(t *testing.T) {
			got := reading(text)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s\n(-want +got):\n%s", text, diff)
			}
			updated = append(updated, name+"\n"+text+"\n----\n"+got)
		})
	}
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(path, []byte(strings.Join(updated, between)+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// reading tells all that is known of a text.
func reading(text string) string {
	var b strings.Builder
	read := diagnostics.Read(text, new(inference.ModelConfig).ProtoReflect().Descriptor(), dictionary())
	for _, f := range read.Findings {
		fmt.Fprintf(&b, "%d:%d %s: %s: %s\n", f.Line, f.Column, f.Field, f.Message, f.Fix)
	}
	repaired, without := read.Repaired()
	if repaired != text {
		fmt.Fprintf(&b, "repaired: %s\n", repaired)
	}
	if without != text {
		fmt.Fprintf(&b, "without:  %s\n", without)
	}
	for _, field := range []string{
		"name", "max_batch_size", "input", "input[0]", "input[1]", "input[0].dims", "input[0].dims[0]", "input[0].dims[1]", "input[0].reshape.shape",
		`metric_tags["team"]`, `parameters["a.b"].string_value`, "version_policy.latest.num_versions", "optimization.graph.level",
	} {
		if line, column, ok := read.Position(field); ok {
			fmt.Fprintf(&b, "at %d:%d %s\n", line, column, field)
		}
		if read.Dropped(field) {
			fmt.Fprintf(&b, "dropped: %s\n", field)
		}
	}
	if read.AnyDropped() {
		b.WriteString("fields are dropped\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func TestMain(m *testing.M) {
	flag.Bool("update", false, "write the expectations in testdata again")
	flag.Parse()
	os.Exit(m.Run())
}

func TestFindingsAreBounded(t *testing.T) {
	descriptor := new(inference.ModelConfig).ProtoReflect().Descriptor()
	for _, text := range []string{"zzzzzz:1 ", "input{data_type: QQQ} ", "name: x "} {
		text = strings.Repeat(text, 2*diagnostics.MaxFindings)
		if n := len(diagnostics.Read(text, descriptor, dictionary()).Findings); n != diagnostics.MaxFindings {
			t.Errorf("%.20s...: %d findings, want %d", text, n, diagnostics.MaxFindings)
		}
	}
}

func TestSuggestions(t *testing.T) {
	many := strings.Split("aaaa bbbb cccc dddd eeee ffff gggg hhhh iiii jjjj kkkk llll", " ")
	for _, tt := range []struct {
		name    string
		known   []string
		nearest string
		suggest string
	}{
		{"max_batchsize", []string{"name", "max_batch_size"}, "max_batch_size", "did you mean max_batch_size?"},
		{"INPUT", []string{"output", "input"}, "input", "did you mean input?"},
		{"fp32", []string{"TYPE_FP16", "TYPE_FP32"}, "TYPE_FP32", "did you mean TYPE_FP32?"},
		{"FLOAT", []string{"TYPE_FP16", "TYPE_FP32"}, "TYPE_FP32", "did you mean TYPE_FP32?"},
		{"ab", []string{"abcd"}, "abcd", "did you mean abcd?"},                                                   // two letters in any case
		{"ab", []string{"abcde"}, "", "known here: abcde"},                                                       // three are too many
		{"abcdef", []string{"abcdxyz"}, "", "known here: abcdxyz"},                                               // three of six
		{"abcdefgh1", []string{"xyzdefgh1"}, "xyzdefgh1", "did you mean xyzdefgh1?"},                             // three of nine
		{"abcdefgh", []string{"xyzdefgh"}, "", "known here: xyzdefgh"},                                           // three of eight
		{"input_x", []string{"input_pinned_memory"}, "input_pinned_memory", "did you mean input_pinned_memory?"}, // six first letters
		{"inpu_xx", []string{"inputs_pinned_memory"}, "", "known here: inputs_pinned_memory"},
		{"dynamic_abcd", []string{"dynamic_batching"}, "", "known here: dynamic_batching"}, // eight of twelve
		{"dynamic_abc", []string{"dynamic_batching"}, "", "known here: dynamic_batching"},
		{"dynamic_ab", []string{"dynamic_batching"}, "dynamic_batching", "did you mean dynamic_batching?"},
		{"aaab", []string{"aaaa", "aaac"}, "aaaa", "did you mean aaaa?"}, // the first of equals
		{"zzzzzz", nil, "", "remove it; nothing is set here"},
		{"zzzzzz", many, "", "known here: " + strings.Join(many, ", ")},
		{"zzzzzz", append(many, "mmmm"), "", "remove it or check its spelling"},
	} {
		if got := dictionary().Nearest(tt.name, tt.known); got != tt.nearest {
			t.Errorf("nearest of %q in %v is %q, want %q", tt.name, tt.known, got, tt.nearest)
		}
		if got := dictionary().Suggest(tt.name, tt.known); got != tt.suggest {
			t.Errorf("for %q in %v: %q, want %q", tt.name, tt.known, got, tt.suggest)
		}
	}
	if got := (diagnostics.Dictionary{}).Nearest("FLOAT", []string{"TYPE_FP32"}); got != "" {
		t.Errorf("without an alias FLOAT is %s", got)
	}
}
