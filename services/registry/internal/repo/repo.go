// Package repo reads model repositories, on local disks and in object stores:
// directories with one directory per model, which holds config.pbtxt and a directory per version.
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
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelfiles"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
)

// Scanner scans a set of repositories. It is safe for concurrent use: one call
// goes on at a time, and reads several models at once.
type Scanner struct {
	roots   []string
	options Options
	digests *modelfiles.Digester
	stores  *remotes
	// outcomes are what models have made of their own configurations.
	outcomes *outcomes

	mu sync.Mutex // held by the one call
}

// atOnce is how many models are read at a time: a store takes several streams
// to fill a connection, and a disk is not made slower by as many.
const atOnce = 8

// reader reads one model.
type reader struct {
	*Scanner
	// asked is who runs the model's code, again whether also where that has failed
	// before.
	asked    Ask
	again    bool
	observed observation
}

// observation is what is noted of a model's files while they are read.
type observation struct {
	newest  time.Time // the latest modification that was met
	torn    bool      // a file changed since it was listed
	unread  bool      // a store failed
	waiting bool      // no worker could run the model's code
}

// note takes a modification time in.
func (s *observation) note(modified time.Time) {
	if modified.After(s.newest) {
		s.newest = modified
	}
}

// New makes a scanner of directories with absolute paths, and of URLs of
// stores. It touches none of them.
func New(roots []string, reading Options) *Scanner {
	stores := newRemotes(roots, reading)
	reading.from = stores
	return &Scanner{roots: roots, options: reading, digests: modelfiles.NewDigester(stores), stores: stores, outcomes: newOutcomes()}
}

// Files is where the repositories are.
func (s *Scanner) Files() Files { return s.options.from }

// AddDigests gives the scanner digests by the fingerprints of trees that it, or
// another scanner, has read before: those of files in stores are not read
// again.
func (s *Scanner) AddDigests(digests map[string]string) {
	s.stores.addDigests(digests)
}

// Check reports, as [Scanner.Scan] does, a repository that cannot be listed.
func (s *Scanner) Check(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if failures := s.stores.refresh(ctx, ""); len(failures) > 0 {
		return failures[0].err
	}
	_, err := s.list()
	return err
}

// Scan reads all repositories. A store is listed as a whole, once, and its
// models are read if anything about them has changed; one that cannot be
// listed now stays as it was, and the snapshot has the cause. What lies in a store is
// taken as a whole model when two listings that are apart by more than
// Options.ObjectQuietPeriod show the same objects, when what the configuration names is
// there, and when a listing after the reading shows the same objects too; of
// models that were there before the first scan, objects of a certain age spare
// the second listing. Of models that whole, if it is not nil, does
// not name, only the names. Files whose size and modification time are
// those of an earlier scan are not read again. The error is that of a
// repository that cannot be listed, or ctx's.
func (s *Scanner) Scan(ctx context.Context, whole func(infer.ModelID) bool) (*catalog.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	failures := s.stores.refresh(ctx, "")
	found, err := s.list()
	if err != nil {
		return nil, err
	}
	snap := &catalog.Snapshot{Ignored: found.ignored}
	for _, failure := range failures {
		snap.Unread = append(snap.Unread, catalog.Unread{Repository: failure.root, Cause: errs.From(failure.err).Msg})
	}
	s.stores.observe(found.dirs)
	s.stores.prefetch(ctx, found.dirs, whole)
	snap.Models = s.readAll(ctx, found.dirs, whole)
	s.stores.confirm(ctx, snap.Models)
	if err := ctx.Err(); err != nil {
		return nil, err // the last model's problem may be no more than this
	}
	if whole == nil {
		s.digests.Sweep()
	}
	return snap, nil
}

// readAll reads all models, several at a time, in the order of their names: of
// those that whole does not name, unless it is nil, the names alone. What is
// left when ctx ends is not read.
func (s *Scanner) readAll(ctx context.Context, dirs map[infer.ModelID][]string, whole func(infer.ModelID) bool) []catalog.Model {
	ids := slices.SortedFunc(maps.Keys(dirs), infer.ModelID.Compare)
	models := make([]catalog.Model, len(ids))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i, id := range ids {
		if whole != nil && !whole(id) {
			models[i] = catalog.Model{Namespace: id.Namespace, Name: id.Name, URL: s.options.from.URL(dirs[id][0])}
			continue
		}
		group.Go(func() error {
			if ctx.Err() == nil {
				models[i] = (&reader{Scanner: s, asked: s.options.Ask}).model(ctx, id, dirs[id], nil)
			}
			return nil
		})
	}
	_ = group.Wait() // what is wrong with a model is in it
	return models
}

// Model reads one model, with config as the text of its configuration if that is
// not nil; found is false if no repository has it. A model whose code has failed
// to complete its configuration is asked again.
func (s *Scanner) Model(ctx context.Context, id infer.ModelID, config []byte) (m catalog.Model, found bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	failures := s.stores.refresh(ctx, id.Name)
	all, err := s.list()
	if err == nil && len(failures) > 0 && !s.stores.areLocal(all.dirs[id]) {
		err = failures[0].err
	}
	if err != nil || all.dirs[id] == nil {
		return catalog.Model{}, false, err
	}
	read := []catalog.Model{(&reader{Scanner: s, asked: s.options.Ask, again: true}).model(ctx, id, all.dirs[id], config)}
	s.stores.confirm(ctx, read)
	return read[0], true, ctx.Err()
}

// Directory reads a model whose directory is in no repository, with ask in place
// of [Options.Ask].
func (s *Scanner) Directory(ctx context.Context, id infer.ModelID, dir string, config []byte, ask Ask) (catalog.Model, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := (&reader{Scanner: s, asked: ask, again: true}).model(ctx, id, []string{dir}, config)
	return m, ctx.Err()
}

// Named gives the models of a name, in the order of their namespaces. The
// error is that of a repository that cannot be listed.
func (s *Scanner) Named(ctx context.Context, name string) ([]infer.ModelID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if failures := s.stores.refresh(ctx, name); len(failures) > 0 {
		return nil, failures[0].err
	}
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
	// ignored is what is no model although it is not hidden either.
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
// at, such as a broken link, is a model: its problem will show it.
func (s *Scanner) listRoot(root string, to *listing) error {
	entries, err := s.options.from.ReadDir(root)
	if err != nil && s.stores.of(root) != nil {
		return listingFailed(root, err)
	}
	if err != nil {
		return errs.Wrap(errs.ConfigInvalid, err,
			"model repository %s cannot be read: %v: give --model-repository a directory that holds one directory per model", root, cause(err))
	}
	for _, entry := range entries {
		if hidden(entry.Name()) {
			continue
		}
		dir := modelfiles.Join(root, entry.Name())
		if info, err := s.options.from.Stat(dir); err == nil && !info.IsDir() {
			to.ignored = append(to.ignored, dir+" is ignored: a model is a directory")
			continue
		}
		id := infer.ModelID{Name: entry.Name()}
		if s.options.Namespacing {
			id.Namespace = root
		}
		to.dirs[id] = append(to.dirs[id], dir)
	}
	return nil
}

// model reads a model, which should have one directory.
func (s *reader) model(ctx context.Context, id infer.ModelID, dirs []string, config []byte) catalog.Model {
	if len(dirs) > 1 {
		const cause = "model appears in two or more repositories" // as the index of models says it, in Triton too
		err := problem(cause+": rename or remove all but one of %s", strings.Join(dirs, ", "))
		return catalog.Model{Name: id.Name, Duplicate: true, Problem: cause, Problems: problemsOf(err)}
	}
	m := catalog.Model{Namespace: id.Namespace, Name: id.Name, URL: s.options.from.URL(dirs[0]), Overridden: config != nil}
	if s.stores.of(dirs[0]) != nil {
		s.remote(ctx, &m, dirs[0], config)
		return m
	}
	s.read(ctx, &m, dirs[0], config)
	m.Changing = m.Torn || s.recent(s.observed.newest)
	return m
}

// read reads a model or finds its problem.
func (s *reader) read(ctx context.Context, m *catalog.Model, dir string, config []byte) {
	if err := s.fill(ctx, m, dir, config); err != nil {
		s.observed.unread = s.observed.unread || fromStore(err)
		m.Config, m.Versions = nil, nil
		m.Problem, m.Problems = errs.From(err).Msg, problemsOf(err)
	}
	m.Torn, m.Waiting = s.observed.torn, s.observed.waiting
}

// recent reports whether a modification is so recent that another may follow.
// One that is far in the future proves nothing about the present.
func (s *Scanner) recent(modified time.Time) bool {
	age := time.Since(modified)
	return age < s.options.FileQuietPeriod && age > -time.Minute
}

// hidden also finds the directories that editors and version control leave.
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
