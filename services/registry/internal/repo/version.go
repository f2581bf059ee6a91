package repo

import (
	"context"
	"fmt"
	"strconv"

	"github.com/nereid-serving/nereid/libs/modelfiles"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
)

func versionDir(dir string, number int64) string {
	return modelfiles.Join(dir, strconv.FormatInt(number, 10))
}

// listed is a version's list of files, or why there is none.
type listed struct {
	tree *modelfiles.Tree
	err  error
}

func (s *reader) listVersions(ctx context.Context, dir string, versions []int64) map[int64]listed {
	all := make(map[int64]listed, len(versions))
	for _, number := range versions {
		tree, err := modelfiles.List(ctx, s.options.from, dir, versionDir(dir, number))
		all[number] = listed{tree, err}
	}
	return all
}

func (s *reader) version(ctx context.Context, path string, number int64, files listed) catalog.Version {
	v := catalog.Version{Number: number, URL: s.options.from.URL(path)}
	err := files.err
	switch {
	case err != nil:
	case s.options.Shallow:
		err = files.tree.Open(s.options.from)
	default:
		s.observed.note(files.tree.Newest())
		v.Digest, err = s.digest(ctx, files.tree)
	}
	if err != nil {
		s.noteRead(err)
		v.Problem = fmt.Sprintf("version %d cannot be read: %v", number, err)
		return v
	}
	v.Fingerprint, v.Bytes = files.tree.Fingerprint(), uint64(files.tree.Bytes())
	return v
}

// digest names the content of a version, without reading it if its files are
// known by their ETags.
func (s *reader) digest(ctx context.Context, tree *modelfiles.Tree) (string, error) {
	fingerprint := tree.Fingerprint()
	if known, ok := s.stores.digest(fingerprint); ok {
		return known, nil
	}
	digest, err := s.digests.Digest(ctx, tree)
	if err == nil {
		s.stores.addDigests(map[string]string{fingerprint: digest})
	}
	return digest, err
}

// refuseStrategy refuses a model that brings its own code for batching, where
// Triton looks for it.
func (s *reader) refuseStrategy(dir string, versions []int64) error {
	dirs := []string{dir}
	for _, number := range versions {
		dirs = append(dirs, versionDir(dir, number))
	}
	for _, dir := range dirs {
		library := modelfiles.Join(dir, "batchstrategy.so")
		if _, err := s.options.from.Stat(library); err == nil {
			return problem("%s is a custom batching strategy, and shared objects are not loaded: remove it and set dynamic_batching, "+
				"whose preferred_batch_size, max_queue_delay_microseconds and priorities decide when a batch is sent", library)
		}
	}
	return nil
}
