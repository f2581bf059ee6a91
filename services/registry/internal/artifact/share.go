package artifact

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Objects is where files are kept for other hosts.
type Objects interface {
	// Put writes an object, in place of one of the name.
	Put(ctx context.Context, name string, data io.Reader) error
	// List gives the sizes of all objects by their names.
	List(ctx context.Context) (map[string]uint64, error)
	// Delete removes an object if it is there.
	Delete(ctx context.Context, name string) error
}

// Scheme begins the URLs of files that are shared.
const Scheme = "nats://artifacts/"

// SharedURL is the URL of a directory that was shared.
func SharedURL(dir string) string { return Scheme + filepath.Base(dir) }

// Shared is one file in the list of a set, as JSON.
type Shared struct {
	Name string `json:"name"` // with slashes
	Size int64  `json:"size"`
}

// Share writes the files of a directory that [Put] made to where workers of
// other hosts find them: each as SET/NAME and then, as SET, the list of them,
// so that a set with a list is whole. The bytes of all sets stay within most;
// the reason is body_too_large if they would not.
func Share(ctx context.Context, to Objects, dir string, most int64) error {
	set := filepath.Base(dir)
	present, err := to.List(ctx)
	if err != nil {
		return err
	}
	if _, ok := present[set]; ok {
		return nil
	}
	files, total, err := filesIn(dir)
	if err != nil {
		return writeFailed(err)
	}
	for _, size := range present {
		total += int64(size)
	}
	if total > most {
		return errs.New(errs.BodyTooLarge, "the files given through the load API would have %d bytes, more than the %d that are kept for all: unload models that were loaded so, or put this one into a model repository", total, most)
	}
	for _, f := range files {
		if err := share(ctx, to, set+"/"+f.Name, filepath.Join(dir, filepath.FromSlash(f.Name))); err != nil {
			return err
		}
	}
	list, err := json.Marshal(files)
	if err != nil {
		return writeFailed(err)
	}
	return to.Put(ctx, set, strings.NewReader(string(list)))
}

func filesIn(dir string) (files []Shared, total int64, err error) {
	err = filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(dir, name)
		files, total = append(files, Shared{filepath.ToSlash(relative), info.Size()}), total+info.Size()
		return err
	})
	return files, total, err
}

func share(ctx context.Context, to Objects, name, file string) error {
	data, err := os.Open(file)
	if err != nil {
		return writeFailed(err)
	}
	return errors.Join(to.Put(ctx, name, data), data.Close())
}

// SweepShared removes all sets but those whose URLs are to be kept, the list of
// each first. Nobody may share files meanwhile.
func SweepShared(ctx context.Context, from Objects, keep func(url string) bool) error {
	present, err := from.List(ctx)
	if err != nil {
		return err
	}
	var names []string
	for name := range present {
		names = append(names, name)
	}
	slices.Sort(names) // a set before its files
	var failures []error
	for _, name := range names {
		set, _, _ := strings.Cut(name, "/")
		if !keep(Scheme + set) {
			failures = append(failures, from.Delete(ctx, name))
		}
	}
	return errors.Join(failures...)
}
