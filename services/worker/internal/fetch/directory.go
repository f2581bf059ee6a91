package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelfiles"
	"github.com/nereid-serving/nereid/services/worker/internal/source"
)

// directory is where contents are kept:
//
//	contents/KEY       a whole content, as a model's directory
//	partial/KEY/files  one that is being fetched
//	partial/KEY/ranges what of it is there
//	partial/KEY.gone   a content that is being removed
//	notes/KEY          what is known of a content; its time is that of the last use
//	locks/KEY          held by who reads or fetches a content
//	locks/room         held by who makes room
type directory string

func (d directory) content(key string) string { return filepath.Join(string(d), "contents", key) }
func (d directory) partial(key string) string { return filepath.Join(string(d), "partial", key) }
func (d directory) ranges(key string) string  { return filepath.Join(d.partial(key), "ranges") }
func (d directory) note(key string) string    { return filepath.Join(string(d), "notes", key) }
func (d directory) lockOf(key string) string  { return filepath.Join(string(d), "locks", key) }

func (d directory) make() error {
	for _, part := range []string{"contents", "partial", "notes", "locks"} {
		if err := os.MkdirAll(filepath.Join(string(d), part), 0o700); err != nil {
			return err
		}
	}
	return d.own()
}

// own refuses a directory of another user, who could put anything there.
func (d directory) own() error {
	info, err := os.Stat(string(d))
	if err != nil {
		return err
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok && int(s.Uid) != os.Getuid() {
		return fmt.Errorf("%s belongs to another user", d)
	}
	return nil
}

var digestForm = regexp.MustCompile(`^sha256:([0-9a-f]{64})$`)

// keyOf names a content: by its digest, and by its version, since a model may
// look at the name of the directory that it is in.
func keyOf(c source.Content) (string, error) {
	found := digestForm.FindStringSubmatch(c.Digest)
	if found == nil {
		return "", errs.New(errs.LoadFailed, "the files of %s have no digest to fetch them by: load the model again", c.URL)
	}
	version := versionName(c)
	if version == "" || version == "." || version == ".." || strings.ContainsAny(version, `/\`) || modelURL(c) == "" {
		return "", errs.New(errs.LoadFailed, "%q is no directory of a version of the model at %q", c.URL, c.ModelURL)
	}
	return found[1] + "-" + version, nil
}

func versionName(c source.Content) string { return path.Base(c.URL) }

// modelURL is the model's URL if the version's lies below it.
func modelURL(c source.Content) string {
	if c.URL != strings.TrimRight(c.ModelURL, "/")+"/"+versionName(c) {
		return ""
	}
	return c.ModelURL
}

// note is what is known of a content in the directory.
type note struct {
	Bytes int64 `json:"bytes"`
	// Fingerprint stands for the digest, as modelfiles has it; empty if nothing
	// does.
	Fingerprint string `json:"fingerprint"`
}

func (d directory) read(key string) (n note) {
	text, err := os.ReadFile(d.note(key))
	if err != nil || json.Unmarshal(text, &n) != nil {
		return note{} // then the content is digested once more
	}
	return n
}

func (d directory) write(key string, n note) error {
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	draft := d.note(key) + ".draft"
	if err := os.WriteFile(draft, text, 0o600); err != nil {
		return err
	}
	return os.Rename(draft, d.note(key))
}

// vouched is the fingerprint that stands for the content's digest.
func (d directory) vouched(key string) string { return d.read(key).Fingerprint }

// used notes that a content, which was verified, is used now. That it cannot be
// noted costs a digest later, or an early removal.
func (d directory) used(ctx context.Context, key string, c source.Content) {
	now := time.Now()
	_ = os.Chtimes(d.note(key), now, now)
	n := d.read(key)
	place := d.content(key)
	tree, err := modelfiles.List(ctx, modelfiles.Local{}, place, versionIn(place, c))
	if err != nil || tree.Fingerprint() == n.Fingerprint {
		return
	}
	n.Fingerprint = tree.Fingerprint()
	_ = d.write(key, n)
}

// remove removes a content, unless somebody reads it.
func (d directory) remove(key string) (removed bool, err error) {
	lock, err := try(d.lockOf(key), exclusive)
	if errors.Is(err, errHeld) {
		return false, nil
	}
	if err != nil {
		return false, notKept(err)
	}
	defer func() { _ = lock.release() }() // it is held no more in any case
	// Renamed first, so that no half of it is ever found.
	gone := d.partial(key) + goneSuffix
	if err := os.RemoveAll(gone); err != nil {
		return false, notKept(err)
	}
	if err := os.Rename(d.content(key), gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, notKept(err)
	}
	if err := errors.Join(os.RemoveAll(gone), removeIfThere(d.note(key)), removeIfThere(d.lockOf(key))); err != nil {
		return false, notKept(err)
	}
	return true, nil
}

const goneSuffix = ".gone"

// removePartial removes what there is of a content, unless somebody fetches it.
func (d directory) removePartial(key string) (removed bool, err error) {
	name := d.lockOf(strings.TrimSuffix(key, goneSuffix))
	lock, err := try(name, exclusive)
	if errors.Is(err, errHeld) {
		return false, nil
	}
	if err != nil {
		return false, notKept(err)
	}
	err = errors.Join(os.RemoveAll(d.partial(key)), removeIfThere(name), lock.release())
	return err == nil, notKeptOr(err)
}

func removeIfThere(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
