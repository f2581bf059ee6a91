package repo

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/blob"
	"github.com/nereid-serving/nereid/libs/modelfiles"
)

// store is one repository in an object store, as it was listed last.
type store struct {
	stores *blob.Stores
	root   string // the URL, without a slash at its end
	dir    *blob.Dir
	// ctx is that of the last refresh, under which files are read: they have no
	// way to be given one.
	ctx    context.Context
	models map[string]*model // by name; nil before the first listing
	failed error             // of the last listing
	small  map[string][]byte // contents of small files by name and ETag

	mu sync.Mutex
	// opened are the models whose objects were read since the last listing. It is
	// guarded by mu.
	opened map[string]bool
}

// model is what lies below one name of a repository. It is not changed.
type model struct {
	name   string
	stamp  string // names the objects with their contents
	newest time.Time
	nodes  map[string]*node // by path from the repository's root
}

// node is a file or directory.
type node struct {
	name     string // the last part of its path
	dir      bool
	object   blob.Object // of a file
	children []fs.DirEntry
}

func newStore(stores *blob.Stores, root string) *store {
	return &store{stores: stores, root: strings.TrimRight(root, "/"), opened: make(map[string]bool), small: make(map[string][]byte)}
}

// refresh lists all models or, once all are known, one.
func (s *store) refresh(ctx context.Context, only string) error {
	if s.models == nil {
		only = ""
	}
	s.failed = s.list(ctx, only)
	return s.failed
}

func (s *store) list(ctx context.Context, only string) error {
	s.ctx = ctx
	clear(s.small)
	s.mu.Lock()
	clear(s.opened)
	s.mu.Unlock()
	dir, err := s.stores.At(ctx, s.root)
	if err != nil {
		return err
	}
	s.dir = dir
	objects, err := dir.List(ctx, only)
	if err != nil {
		return err
	}
	by := make(map[string][]blob.Object)
	for _, o := range objects {
		name, _, _ := strings.Cut(o.Name, "/")
		by[name] = append(by[name], o)
	}
	if only == "" {
		s.models = make(map[string]*model, len(by))
	}
	delete(s.models, only)
	for name, objects := range by {
		s.models[name] = newModel(name, objects)
	}
	return nil
}

func newModel(name string, objects []blob.Object) *model {
	m := &model{name: name, nodes: make(map[string]*node)}
	total := sha256.New()
	for _, o := range objects {
		fmt.Fprintf(total, "%q %q %d\n", o.Name, o.ETag, o.Size)
		if o.Modified.After(m.newest) {
			m.newest = o.Modified
		}
		m.add(o)
	}
	m.stamp = hex.EncodeToString(total.Sum(nil)[:16])
	for _, n := range m.nodes {
		slices.SortFunc(n.children, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	}
	return m
}

// add adds an object and the directories that it is in. A key that ends with a
// slash is a directory, which may be empty.
func (m *model) add(o blob.Object) {
	name := strings.TrimSuffix(o.Name, "/")
	isDir := name != o.Name
	if old := m.nodes[name]; old != nil {
		return // a directory of this name is there already
	}
	n := &node{name: path.Base(name), dir: isDir, object: o}
	m.nodes[name] = n
	for {
		parent := path.Dir(name)
		if parent == "." {
			return
		}
		p, known := m.nodes[parent]
		if !known {
			p = &node{name: path.Base(parent), dir: true}
			m.nodes[parent] = p
		}
		p.dir = true
		p.children = append(p.children, fs.FileInfoToDirEntry(info{n}))
		if known {
			return
		}
		name, n = parent, p
	}
}

// model returns the one that a name is in; an empty one if there is none.
func (s *store) model(name string) *model {
	top, _, _ := strings.Cut(s.path(name), "/")
	if m := s.models[top]; m != nil {
		return m
	}
	return &model{name: top}
}

// path is a name's path from the root.
func (s *store) path(name string) string { return strings.Trim(strings.TrimPrefix(name, s.root), "/") }

func (s *store) node(name string) (*node, bool) {
	n, ok := s.model(name).nodes[s.path(name)]
	return n, ok
}

func (s *store) ReadDir(dir string) ([]fs.DirEntry, error) {
	if s.path(dir) == "" {
		if s.models == nil {
			return nil, s.failed
		}
		var entries []fs.DirEntry
		for name, m := range s.models {
			entries = append(entries, fs.FileInfoToDirEntry(info{m.nodes[name]}))
		}
		slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
		return entries, nil
	}
	n, ok := s.node(dir)
	if !ok || !n.dir {
		return nil, &fs.PathError{Op: "list", Path: dir, Err: fs.ErrNotExist}
	}
	return n.children, nil
}

func (s *store) Stat(name string) (fs.FileInfo, error) {
	if s.path(name) == "" {
		return info{&node{name: path.Base(s.root), dir: true}}, nil
	}
	n, ok := s.node(name)
	if !ok {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
	}
	return info{n}, nil
}

func (s *store) Open(name string) (modelfiles.File, error) {
	n, ok := s.node(name)
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	s.mu.Lock()
	s.opened[s.model(name).name] = true
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(s.ctx)
	f := &remoteFile{info: info{n}, dir: s.dir, ctx: ctx, cancel: cancel}
	if data, ok := s.small[key(n.object)]; ok {
		f.window = data
	}
	return f, nil
}

// read reports whether objects of a model were read since the last listing.
func (s *store) read(model string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened[model]
}

func key(o blob.Object) string { return o.Name + "\x00" + o.ETag }

const (
	// smallFile bounds, in bytes, the files that are fetched ahead; aheadBytes
	// bounds all of them.
	smallFile  = 128 << 10
	aheadBytes = 64 << 20
	// ahead is how many of them are fetched at the same time.
	ahead = 16
)

// prefetch fetches the small files of models ahead of their use. What fails is
// read again, and then fails with the cause.
func (s *store) prefetch(ctx context.Context, dirs []string) {
	var (
		group sync.WaitGroup
		mu    sync.Mutex
		turns = make(chan struct{}, ahead)
		left  = int64(aheadBytes)
	)
	for _, dir := range dirs {
		for _, n := range s.model(dir).nodes {
			if n.dir || n.object.Size > smallFile || n.object.Size > left {
				continue
			}
			left -= n.object.Size
			turns <- struct{}{}
			group.Go(func() {
				defer func() { <-turns }()
				body, err := s.dir.Open(ctx, n.object, 0, n.object.Size)
				if err != nil {
					return
				}
				defer body.Close()
				var data bytes.Buffer
				if _, err := io.Copy(&data, body); err == nil {
					mu.Lock()
					s.small[key(n.object)] = data.Bytes()
					mu.Unlock()
				}
			})
		}
	}
	group.Wait()
}

// info is what the listing has of a file or directory.
type info struct{ *node }

func (i info) Name() string { return i.name }
func (i info) Size() int64  { return i.object.Size }
func (i info) IsDir() bool  { return i.dir }

func (i info) Mode() fs.FileMode {
	if i.dir {
		return fs.ModeDir | 0o555
	}
	return 0o444
}

func (i info) ModTime() time.Time { return i.object.Modified }

// Sys gives the ETag of a file.
func (i info) Sys() any {
	if i.dir {
		return nil
	}
	return modelfiles.ETag(i.object.ETag)
}
