package stub

import (
	"io"
	"os"
	"testing"
	"time"
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
