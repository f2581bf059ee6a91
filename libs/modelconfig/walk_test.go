package modelconfig

import (
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// FuzzWalk holds the walker against the stock parser: a text that the parser
// takes has no slip, and one that it refuses is taken without its slips or has
// the parser's problem as well.
func FuzzWalk(f *testing.F) {
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
			f.Add(string(text))
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		config := new(inference.ModelConfig)
		err := prototext.Unmarshal([]byte(text), config)
		w := walk(text, config.ProtoReflect().Descriptor())
		if err == nil && len(w.slips)+len(w.edits) > 0 {
			t.Errorf("the parser takes %q, the walker has %+v", text, w.slips)
		}
		if read := parse(text); err != nil && len(read.problems) == 0 {
			t.Errorf("the parser has %v, the reading nothing", err)
		}
	})
}
