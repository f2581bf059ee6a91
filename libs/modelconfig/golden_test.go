package modelconfig_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
)

// TestGolden loads every testdata/{valid,invalid}/NAME.pbtxt as the
// configuration of a model in a directory NAME and compares with NAME.json,
// the normalized configuration, or NAME.txt, the problems. Run with
// -args -update to rewrite the expectations.
func TestGolden(t *testing.T) {
	for _, kind := range []string{"valid", "invalid"} {
		paths, err := filepath.Glob(filepath.Join("testdata", kind, "*.pbtxt"))
		if err != nil || len(paths) == 0 {
			t.Fatalf("no testdata for %s: %v", kind, err)
		}
		for _, path := range paths {
			t.Run(kind+"/"+modelName(path), func(t *testing.T) {
				text, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				want, got := strings.TrimSuffix(path, ".pbtxt")+".json", ""
				if kind == "valid" {
					got = normalized(t, text, modelName(path))
				} else {
					want = strings.TrimSuffix(path, ".pbtxt") + ".txt"
					got = problems(t, text, modelName(path))
				}
				golden(t, want, got)
			})
		}
	}
}

func modelName(path string) string { return strings.TrimSuffix(filepath.Base(path), ".pbtxt") }

func normalized(t *testing.T, text []byte, name string) string {
	config, err := modelconfig.Load(text, modelconfig.Directory{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	again := proto.CloneOf(config)
	modelconfig.Normalize(again, modelconfig.Directory{Name: name})
	if !proto.Equal(config, again) {
		t.Error("a second Normalize changes the configuration")
	}
	if _, err := modelconfig.FromProto(config); err != nil {
		t.Errorf("FromProto: %v", err)
	}
	wire, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	var tree any // protojson varies its blanks on purpose
	if err := json.Unmarshal(wire, &tree); err != nil {
		t.Fatal(err)
	}
	pretty, err := json.MarshalIndent(tree, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(pretty) + "\n"
}

func problems(t *testing.T, text []byte, name string) string {
	config, err := modelconfig.Load(text, modelconfig.Directory{Name: name})
	if err == nil || config != nil {
		t.Fatalf("Load = %v, %v; want an error", config, err)
	}
	if e := errs.From(err); e.Reason == errs.Bug || e.Model != name {
		t.Errorf("error has reason %q, model %q", e.Reason, e.Model)
	}
	var b strings.Builder
	for _, p := range modelconfig.ProblemsOf(err) {
		b.WriteString(string(p.Reason) + ": " + p.String() + "\n")
	}
	return b.String()
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if update := flag.Lookup("update"); update.Value.String() == "true" {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func TestMain(m *testing.M) {
	flag.Bool("update", false, "rewrite the expectations in testdata")
	flag.Parse()
	os.Exit(m.Run())
}
