package diagnostics_test

import (
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"

	"github.com/nereid-serving/nereid/libs/diagnostics"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// FuzzRead holds the reader against the stock parser: a text that the parser
// takes has no finding, and reads as it is.
// FuzzRead holds the reader against the stock parser: a text that the parser
func FuzzRead(f *testing.F) {
	for _, kind := range []string{"valid", "invalid"} {
		paths, err := filepath.Glob(filepath.Join("..", "modelconfig", "testdata", kind, "*.pbtxt"))
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
		if prototext.Unmarshal([]byte(text), config) != nil {
			return
		}
		read := diagnostics.Read(text, config.ProtoReflect().Descriptor(), diagnostics.Dictionary{})
		if repaired, without := read.Repaired(); len(read.Findings) > 0 || repaired != text || without != text {
			t.Errorf("the parser takes %q; it has the findings %+v, and is repaired to %q", text, read.Findings, repaired)
		}
	})
}
