package overview_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/overview"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

var update = flag.Bool("update", false, "rewrite testdata")

// Each cluster of testdata, a message in JSON, is shown as the text beside it.
func TestTables(t *testing.T) {
	clusters, err := filepath.Glob("testdata/*.json")
	if err != nil || len(clusters) == 0 {
		t.Fatalf("no clusters in testdata: %v", err)
	}
	for _, path := range clusters {
		t.Run(filepath.Base(path), func(t *testing.T) {
			message, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			c := &nereidv1.ClusterStatus{}
			if err := protojson.Unmarshal(message, c); err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if err := overview.Print(&got, c); err != nil {
				t.Fatal(err)
			}
			golden := strings.TrimSuffix(path, ".json") + ".txt"
			if *update {
				if err := os.WriteFile(golden, got.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatalf("%v; run the test with -update", err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("%s differs (-want +got):\n%s", golden, diff)
			}
			if err := overview.Unwell(c); (err != nil) != (len(c.GetProblems()) > 0) {
				t.Errorf("Unwell = %v with the problems %q", err, c.GetProblems())
			}
		})
	}
}
