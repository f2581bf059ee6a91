// Package repo reads local model repositories: directories with one directory
// per model, which holds config.pbtxt and a directory per version.
//
// A repository is other people's files, changing under our hands. What is
// wrong with one model is that model's problem in the snapshot; only a
// repository that cannot be listed at all is an error. Nothing is written.
package repo

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelfiles"
	"github.com/nereid-serving/nereid/services/registry/internal/snapshot"
)

// Scanner scans a set of repositories. It is safe for concurrent use and does
// one thing at a time.
type Scanner struct {
	roots   []string
	reading Reading

	mu      sync.Mutex
	digests *modelfiles.Digester // guarded by mu
	seen    sighting             // of the model that is read; guarded by mu
}

// sighting is what is noted of a model's files while they are read.
type sighting struct {
	newest time.Time // the latest modification that was met
	torn   bool      // a file changed since it was listed
}

// note takes a modification time in.
func (s *sighting) note(modified time.Time) {
	if modified.After(s.newest) {
		s.newest = modified
	}
}

// New makes a scanner of directories with absolute paths. It touches none of
// them.
func New(roots []string, reading Reading) *Scanner {
	reading.from = Local{}
	return &Scanner{roots: roots, reading: reading, digests: modelfiles.NewDigester(reading.from)}
}

// Check reports, as [Scanner.Scan] does, a repository that cannot be listed.
func (s *Scanner) Check() error {
	_, err := s.list()
	return err
}

// Scan reads all repositories; of models that whole, if it is not nil, does
// not name, only the names. Files whose size and modification time are
// those of an earlier scan are not read again. The error is that of a
// repository that cannot be listed, or ctx's.
func (s *Scanner) Scan(ctx context.Context, whole func(infer.ModelID) bool) (*snapshot.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, err := s.list()
	if err != nil {
		return nil, err
	}
	snap := &snapshot.Snapshot{Ignored: found.ignored}
	for _, id := range slices.SortedFunc(maps.Keys(found.dirs), infer.ModelID.Compare) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if whole != nil && !whole(id) {
			snap.Models = append(snap.Models, snapshot.Model{Namespace: id.Namespace, Name: id.Name, URL: s.reading.from.URL(found.dirs[id][0])})
			continue
		}
		snap.Models = append(snap.Models, s.model(ctx, id, found.dirs[id], nil))
	}
	if err := ctx.Err(); err != nil {
		return nil, err // the last model's problem may be no more than this
	}
	if whole == nil {
		s.digests.Sweep()
	}
	return snap, nil
}

// Model reads one model, with config as the text of its configuration
// if that is not nil;
// found is false if no repository has it.
func (s *Scanner) Model(ctx context.Context, id infer.ModelID, config []byte) (m snapshot.Model, found bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, err := s.list()
	if err != nil || all.dirs[id] == nil {
		return snapshot.Model{}, false, err
	}
	m = s.model(ctx, id, all.dirs[id], config)
	return m, true, ctx.Err()
}

// Directory reads a model whose directory is in no repository.
func (s *Scanner) Directory(ctx context.Context, id infer.ModelID, dir string, config []byte) (snapshot.Model, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.model(ctx, id, []string{dir}, config)
	return m, ctx.Err()
}

// Named gives the models of a name, in the order of their namespaces. The
// error is that of a repository that cannot be listed.
func (s *Scanner) Named(name string) ([]infer.ModelID, error) {
	found, err := s.list()
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(found.dirs, func(id infer.ModelID, _ []string) bool { return id.Name != name })
	return slices.SortedFunc(maps.Keys(found.dirs), infer.ModelID.Compare), nil
}

// listing is what the repositories have, by name.
type listing struct {
	dirs map[infer.ModelID][]string // of each model
	// ignored says what is no model although it is not hidden either.
	ignored []string
}

func (s *Scanner) list() (listing, error) {
	all := listing{dirs: make(map[infer.ModelID][]string)}
	for _, root := range s.roots {
		if err := s.listRoot(root, &all); err != nil {
			return listing{}, err
		}
	}
	return all, nil
}

// listRoot adds a repository's model directories. One that cannot be looked
// at, such as a broken link, is a model: its problem will tell.
func (s *Scanner) listRoot(root string, to *listing) error {
	entries, err := s.reading.from.ReadDir(root)
	if err != nil {
		return errs.Wrap(errs.ConfigInvalid, err,
			"model repository %s cannot be read: %v: give --model-repository a directory that holds one directory per model", root, cause(err))
	}
	for _, entry := range entries {
		if hidden(entry.Name()) {
			continue
		}
		dir := filepath.Join(root, entry.Name())
		if info, err := s.reading.from.Stat(dir); err == nil && !info.IsDir() {
			to.ignored = append(to.ignored, dir+" is ignored: a model is a directory")
			continue
		}
		id := infer.ModelID{Name: entry.Name()}
		if s.reading.Namespacing {
			id.Namespace = root
		}
		to.dirs[id] = append(to.dirs[id], dir)
	}
	return nil
}

// model reads a model, which should have one directory.
func (s *Scanner) model(ctx context.Context, id infer.ModelID, dirs []string, config []byte) snapshot.Model {
	if len(dirs) > 1 {
		err := problem("model appears in two or more repositories: rename or remove all but one of %s", strings.Join(dirs, ", "))
		return snapshot.Model{Name: id.Name, Problem: errs.From(err).Msg, Problems: problemsOf(err)}
	}
	m := snapshot.Model{Namespace: id.Namespace, Name: id.Name, URL: s.reading.from.URL(dirs[0]), Overridden: config != nil}
	s.seen = sighting{}
	if err := s.fill(ctx, &m, dirs[0], config); err != nil {
		m.Config, m.Versions = nil, nil
		m.Problem, m.Problems = errs.From(err).Msg, problemsOf(err)
	}
	m.Torn = s.seen.torn
	m.Unsettled = m.Torn || s.young(s.seen.newest)
	return m
}

// young reports whether a modification is so recent that another may follow.
// One that is far in the future says nothing about the present.
func (s *Scanner) young(modified time.Time) bool {
	age := time.Since(modified)
	return age < s.reading.Settle && age > -time.Minute
}

// hidden also tells the directories that editors and version control leave.
func hidden(name string) bool { return strings.HasPrefix(name, ".") }

// isDir follows links: repositories are often made of them.
func isDir(from Files, path string) bool {
	info, err := from.Stat(path)
	return err == nil && info.IsDir()
}

// cause is a file error without operation and path, for messages that name
// the path themselves.
func cause(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}
