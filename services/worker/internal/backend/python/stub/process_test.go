package stub

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// What a process has written before its end is read though the reader is late, also
// where another process holds the pipe.
func TestOutputIsReadToTheEndOfTheProcess(t *testing.T) {
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer closeFiles([]*os.File{from, to})
	if _, err := to.WriteString("last words\n"); err != nil {
		t.Fatal(err)
	}
	if err := from.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	o := &output{File: from}
	first := make([]byte, 4)
	if _, err := io.ReadFull(o, first); err != nil {
		t.Fatal(err)
	}
	if _, err := to.WriteString("another's"); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(o)
	if got := string(first) + string(rest); got != "last words\n" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
}

// threadRights are what the kernel says of the process's first thread.
func threadRights(t *testing.T) (list []string) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "NoNewPrivs:") || strings.HasPrefix(line, "Seccomp") || strings.HasPrefix(line, "Cap") {
			list = append(list, line)
		}
	}
	return list
}

// TestTheFirstThreadKeepsItsRights holds that a starter has a thread that ends with it,
// which the first does not.
func TestTheFirstThreadKeepsItsRights(t *testing.T) {
	before := threadRights(t)
	for range 200 {
		s, err := NewStarter("", true)
		if err != nil {
			t.Log(err)
		}
		s.Close()
	}
	if diff := cmp.Diff(before, threadRights(t)); diff != "" {
		t.Error(diff)
	}
}
