package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A save is served soon, without a failed request, however the editor writes; one that
// is broken leaves what was there, and the log has the cause.
func TestSavesAreServedAtOnce(t *testing.T) {
	inOneProcess(t)
	dir := reloadable(t)
	s := start(t, dir, "--watch")
	load := s.underLoad(t, "echo")
	file := filepath.Join(dir, "echo", "config.pbtxt")
	serves := func(output string) {
		t.Helper()
		s.until("the output "+output, s.HTTP+"/v2/models/echo", func(text string) bool { return strings.Contains(text, `"name":"`+output+`"`) })
		load.more(50)
	}
	serves("y")
	rewrite(t, file, swapping("z")) // by a rename
	serves("z")
	if err := os.WriteFile(file, []byte("max_batch_size: many\n"+swapping("y")), 0o600); err != nil {
		t.Fatal(err)
	}
	s.eventually("the cause in the log", func() bool { return strings.Contains(s.text(), "config.pbtxt:1:17") })
	serves("z")
	if err := os.WriteFile(file, []byte(swapping("y")), 0o600); err != nil { // in place
		t.Fatal(err)
	}
	serves("y")
	load.end()
}
