package modelfiles

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// disk is the local file system, whose files were changed when the test says.
// It counts what is read.
type disk struct {
	Local
	changed time.Time
	opened  int
	onOpen  func()
}

func (d *disk) Stat(name string) (fs.FileInfo, error) {
	info, err := d.Local.Stat(name)
	if err != nil {
		return nil, err
	}
	return dated{info, d.changed}, nil
}

func (d *disk) Open(name string) (File, error) {
	d.opened++
	if d.onOpen != nil {
		d.onOpen()
	}
	return d.Local.Open(name)
}

// dated is a file that was changed at another time, on a file system that says
// no more.
type dated struct {
	fs.FileInfo
	at time.Time
}

func (d dated) ModTime() time.Time { return d.at }
func (dated) Sys() any             { return nil }

func version(t *testing.T) (modelDir, dir string) {
	t.Helper()
	modelDir = t.TempDir()
	dir = filepath.Join(modelDir, "1")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "a"), "before")
	return modelDir, dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func digest(t *testing.T, d *Digester, modelDir, dir string) (string, *Tree) {
	t.Helper()
	tree, err := List(t.Context(), d.from, modelDir, dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := d.Digest(t.Context(), tree)
	if err != nil {
		t.Fatal(err)
	}
	return text, tree
}

func TestFilesAreReadOnceUnlessTheyAreFresh(t *testing.T) {
	for name, tt := range map[string]struct {
		age  time.Duration
		want int // files opened in two digests
	}{
		"old":                            {time.Hour, 1},
		"of this moment":                 {-time.Minute, 2}, // however long the test takes
		"between a tick and two seconds": {time.Second, 1},
	} {
		t.Run(name, func(t *testing.T) {
			modelDir, dir := version(t)
			from := &disk{changed: time.Now().Add(-tt.age)}
			d := NewDigester(from)
			first, _ := digest(t, d, modelDir, dir)
			if again, _ := digest(t, d, modelDir, dir); again != first || from.opened != tt.want {
				t.Errorf("digests %s and %s, %d files read, want %d", first, again, from.opened, tt.want)
			}
			d.Sweep()
			d.Sweep() // nothing was met between the two
			if digest(t, d, modelDir, dir); from.opened <= tt.want {
				t.Error("a file is remembered that nobody has met")
			}
			from.changed = from.changed.Add(time.Millisecond)
			write(t, filepath.Join(dir, "a"), "after!")
			if other, _ := digest(t, d, modelDir, dir); other == first {
				t.Error("a file of another time was not read again")
			}
		})
	}
}

// What Python writes while a model is served makes no other content of it.
func TestBytecodeIsNoContent(t *testing.T) {
	modelDir, dir := version(t)
	d := NewDigester(Local{})
	before, _ := digest(t, d, modelDir, dir)
	for _, compiled := range []string{"__pycache__", filepath.Join("package", "__pycache__")} {
		if err := os.MkdirAll(filepath.Join(dir, compiled), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, compiled, "model.cpython-311.pyc"), "compiled")
	}
	if after, tree := digest(t, d, modelDir, dir); after != before || len(tree.Named(".pyc")) > 0 {
		t.Errorf("%s and then %s", before, after)
	}
	write(t, filepath.Join(dir, "package", "b.pyc"), "a module without its source")
	if after, _ := digest(t, d, modelDir, dir); after == before {
		t.Errorf("a module is no content")
	}
}

// An archive beside the versions may be a model's Python.
func TestArchivesAreContent(t *testing.T) {
	modelDir, dir := version(t)
	d := NewDigester(Local{})
	seen := map[string]string{}
	content := func(of string) {
		text, _ := digest(t, d, modelDir, dir)
		if before, ok := seen[text]; ok {
			t.Errorf("%s is no other content than %s", of, before)
		}
		seen[text] = of
	}
	content("no archive")
	write(t, filepath.Join(modelDir, "own.tar.gz"), "packed")
	content("an archive")
	write(t, filepath.Join(modelDir, "own.tar.gz"), "packed otherwise")
	content("another of its name")
	before, _ := digest(t, d, modelDir, dir)
	write(t, filepath.Join(modelDir, "config.pbtxt"), "")
	if err := os.Mkdir(filepath.Join(modelDir, "directory.tgz"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(modelDir, "directory.tgz", "file"), "")
	if after, _ := digest(t, d, modelDir, dir); after != before {
		t.Error("what is no archive is content")
	}
}

// Times of whole seconds are those of a file system that knows no parts.
func TestFresh(t *testing.T) {
	now := time.Unix(1_000, 0)
	for _, tt := range []struct {
		changed time.Time
		want    bool
	}{
		{now, true},
		{now.Add(-time.Second), true},
		{now.Add(-3 * time.Second), false},
		{now.Add(-1500 * time.Millisecond), false},
		{now.Add(-50 * time.Millisecond), true},
		{now.Add(time.Minute), true},
	} {
		if got := (stamp{changed: tt.changed.UnixNano()}).fresh(now); got != tt.want {
			t.Errorf("changed at %v: fresh %t, want %t", tt.changed, got, tt.want)
		}
		if got := (stamp{modified: tt.changed.UnixNano()}).fresh(now); got != tt.want {
			t.Errorf("modified at %v: fresh %t, want %t", tt.changed, got, tt.want)
		}
	}
}

func TestFileThatChangesWhileItIsRead(t *testing.T) {
	modelDir, dir := version(t)
	from := &disk{changed: time.Unix(1_000, 0)}
	from.onOpen = func() { from.changed = from.changed.Add(time.Second) }
	tree, err := List(t.Context(), from, modelDir, dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewDigester(from).Digest(t.Context(), tree); !errors.Is(err, ErrChanged) {
		t.Errorf("Digest = %v", err)
	}
}

// The digest is of the files, wherever they are; the fingerprint is of these.
func TestFingerprint(t *testing.T) {
	if hostID() == "" {
		t.Skip("this host has no name")
	}
	modelDir, dir := version(t)
	d := NewDigester(Local{})
	first, tree := digest(t, d, modelDir, dir)
	tree.at = tree.at.Add(time.Hour)
	if again, next := digest(t, d, modelDir, dir); again != first || next.Fingerprint() != "" {
		t.Errorf("a file of this moment has the fingerprint %q", next.Fingerprint())
	}
	if got := tree.Fingerprint(); !strings.HasPrefix(got, "stat:") {
		t.Errorf("an hour later its fingerprint is %q", got)
	}
	otherModel, otherDir := version(t)
	same, other := digest(t, d, otherModel, otherDir)
	other.at = tree.at
	if same != first || other.Fingerprint() == tree.Fingerprint() {
		t.Errorf("equal files elsewhere: digests %s and %s, fingerprints %s and %s", first, same, tree.Fingerprint(), other.Fingerprint())
	}
	elsewhere := &disk{changed: time.Unix(1_000, 0)}
	if _, tree := digest(t, NewDigester(elsewhere), modelDir, dir); tree.Fingerprint() != "" {
		t.Error("a file system that says too little has a fingerprint")
	}
}
