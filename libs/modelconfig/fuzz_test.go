package modelconfig_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/onnxheader"
)

// FuzzLoad reads any text as a configuration: it is refused with problems that
// stand within the text, or accepted as one that is normal, valid and has a
// JSON form.
func FuzzLoad(f *testing.F) {
	for _, kind := range []string{"valid", "invalid"} {
		paths, err := filepath.Glob(filepath.Join("testdata", kind, "*.pbtxt"))
		if err != nil || len(paths) == 0 {
			f.Fatalf("no seeds in %s: %v", kind, err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text)
		}
	}
	model := header([]onnxheader.Value{value("x", -1, 2)}, value("y", -1))
	f.Fuzz(func(t *testing.T, text []byte) {
		config, err := completed(string(text), model)
		if err != nil {
			checkProblems(t, text, modelconfig.ProblemsOf(err))
			return
		}
		again := proto.CloneOf(config)
		modelconfig.Normalize(again, modelconfig.Directory{Name: "m"})
		if !proto.Equal(config, again) {
			t.Error("a second Normalize changes the configuration")
		}
		if _, err := modelconfig.FromProto(config); err != nil {
			t.Errorf("FromProto: %v", err)
		}
		if !json.Valid(modelconfig.JSON(config)) {
			t.Error("the JSON form is not JSON")
		}
	})
}

// TestHostileTextsGiveBoundedProblems has texts of the allowed size in which
// nearly every word is a problem.
func TestHostileTextsGiveBoundedProblems(t *testing.T) {
	repeat := func(before, s, after string) string {
		return before + strings.Repeat(s, (modelconfig.MaxText-len(before)-len(after))/len(s)) + after
	}
	for name, text := range map[string]string{
		"unknown fields": repeat("", "a:1 ", ""),
		"inputs":         repeat("", "input{} ", ""),
		"gpus":           repeat("instance_group { gpus: [ 1", ",1", "] }"),
		"versions":       repeat("version_policy { specific { versions: [ -1", ",-1", "] } }"),
		"steps":          repeat("platform: \"ensemble\" ensemble_scheduling {", "step { } ", "}"),
		"commas":         repeat("backend: \"echo\" version_policy { specific { versions: [ -1", " -1", "] } }"),
		"values":         repeat("backend: \"echo\" input { ", "data_type: T ", "}"),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := modelconfig.Load([]byte(text), modelconfig.Directory{Name: "m"})
			if n := len(modelconfig.ProblemsOf(err)); n < 100 || n > 210 {
				t.Errorf("%d problems", n)
			}
		})
	}
}

func checkProblems(t *testing.T, text []byte, problems modelconfig.Problems) {
	t.Helper()
	if len(problems) == 0 {
		t.Error("an error without problems")
	}
	lines := 1
	for _, c := range text {
		if c == '\n' {
			lines++
		}
	}
	for _, p := range problems {
		if p.Message == "" || p.Reason == "" || p.File == "" || p.Line < 0 || p.Line > lines {
			t.Errorf("problem %+v of %d lines", p, lines)
		}
	}
}
