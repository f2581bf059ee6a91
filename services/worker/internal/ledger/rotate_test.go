package ledger

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
)

// A full log is kept once; what is older is forgotten.
func TestFullLogIsBegunAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "executions")
	log := NewLog(path, "w")
	log.limit = 300 // a line has some 150 bytes
	if err := log.Open(); err != nil {
		t.Fatal(err)
	}
	for range 9 {
		e := log.Begin(&infer.Batch{Requests: []*infer.Request{{}}}, infer.ModelRef{Name: "m"})
		log.End(e, []infer.Outcome{infer.Succeeded}, 1)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) != 2 {
		t.Fatalf("files: %v, %v", files, err)
	}
	for _, name := range files {
		info, err := os.Stat(name)
		if err != nil || info.Size() == 0 || info.Size() > log.limit {
			t.Errorf("%s: %v, %v", name, info.Size(), err)
		}
	}
}
