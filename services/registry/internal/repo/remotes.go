package repo

import (
	"context"
	"crypto/sha256"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/blob"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelfiles"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
)

// remotes are the repositories in stores, beside the local disk. As [Files] they
// return what the last listing has, and only Open asks a store. Listings are made
// while no model is read.
type remotes struct {
	Local
	roots       []*store
	quietPeriod time.Duration
	scanned     bool // a whole scan has begun

	mu       sync.Mutex
	observed map[string]firstSeen   // by directory; guarded by mu
	models   map[string]cachedModel // by directory; guarded by mu
	digests  map[string]string      // by fingerprint of trees; guarded by mu
}

var _ Files = (*remotes)(nil)

func newRemotes(roots []string, reading Options) *remotes {
	r := &remotes{
		quietPeriod: reading.ObjectQuietPeriod,
		observed:    make(map[string]firstSeen), models: make(map[string]cachedModel), digests: make(map[string]string),
	}
	stores := reading.Stores
	for _, root := range roots {
		if !blob.Remote(root) {
			continue
		}
		if stores == nil {
			stores = blob.New(blob.Options{})
		}
		r.roots = append(r.roots, newStore(stores, root))
	}
	return r
}

// of returns the store that has a name; nil if it is a local one.
func (r *remotes) of(name string) *store {
	if !blob.Remote(name) {
		return nil
	}
	for _, s := range r.roots {
		if name == s.root || strings.HasPrefix(name, s.root+"/") {
			return s
		}
	}
	return nil
}

// areLocal reports whether there are directories, and none is in a store.
func (r *remotes) areLocal(dirs []string) bool {
	return len(dirs) > 0 && !slices.ContainsFunc(dirs, blob.Remote)
}

// addDigests takes in digests by fingerprints, as far as these are good on any host.
func (r *remotes) addDigests(digests map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for fingerprint, digest := range digests {
		if strings.HasPrefix(fingerprint, modelfiles.TagPrefix) && digest != "" {
			r.digests[fingerprint] = digest
		}
	}
}

// digest is that of a tree by its fingerprint, if it is known.
func (r *remotes) digest(fingerprint string) (digest string, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	digest, known = r.digests[fingerprint]
	return digest, known
}

// store keeps what a model was read as, while its objects have the stamp.
func (r *remotes) store(dir, stamp string, m catalog.Model) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.models[dir] = cachedModel{stamp, m}
}

func (r *remotes) cached(dir, stamp string) (m catalog.Model, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept, known := r.models[dir]
	return kept.model, known && kept.stamp == stamp
}

// unlisted is a repository that could not be listed.
type unlisted struct {
	root string
	err  error
}

// refresh lists the stores anew: all of them or, of each, one model. What fails
// keeps what was listed before; it is returned.
func (r *remotes) refresh(ctx context.Context, model string) (failures []unlisted) {
	for _, s := range r.roots {
		if err := s.refresh(ctx, model); err != nil && ctx.Err() == nil {
			failures = append(failures, unlisted{s.root, listingFailed(s.root, err)})
		}
	}
	return failures
}

// observe notes when the models' objects were first seen as they are, and forgets
// removed models.
func (r *remotes) observe(dirs map[infer.ModelID][]string) {
	present := make(map[string]bool)
	for _, places := range dirs {
		for _, dir := range places {
			if r.of(dir) != nil {
				present[dir] = true
				r.uploading(dir, r.stampOf(dir))
			}
		}
	}
	r.scanned = true
	r.mu.Lock()
	defer r.mu.Unlock()
	for dir := range r.observed {
		if !present[dir] {
			delete(r.observed, dir)
			delete(r.models, dir)
		}
	}
}

func (r *remotes) stampOf(dir string) string {
	s := r.of(dir)
	return s.model(dir).stamp
}

// uploading reports whether a model's objects have changed so recently that
// others may follow.
func (r *remotes) uploading(dir, stamp string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	seen, known := r.observed[dir]
	if !known || seen.stamp != stamp {
		seen = firstSeen{stamp: stamp, since: now}
		if newest := r.of(dir).model(dir).newest; !known && !r.scanned && now.Sub(newest) > uploadedLongAgo {
			seen.since = time.Time{}
		}
		r.observed[dir] = seen
	}
	return now.Sub(seen.since) < r.quietPeriod
}

// prefetch fetches small files of the models that will be read, many at a time.
func (r *remotes) prefetch(ctx context.Context, dirs map[infer.ModelID][]string, whole func(infer.ModelID) bool) {
	for _, s := range r.roots {
		var wanted []string
		for id, places := range dirs {
			dir := places[0]
			if len(places) > 1 || r.of(dir) != s || whole != nil && !whole(id) {
				continue
			}
			if _, known := r.cached(dir, s.model(dir).stamp); !known {
				wanted = append(wanted, dir)
			}
		}
		slices.Sort(wanted)
		s.prefetch(ctx, wanted)
	}
}

// confirm lists once more the stores of models that were read just now, and
// marks those whose objects are others than before: they may be made of two
// contents.
func (r *remotes) confirm(ctx context.Context, models []catalog.Model) {
	read := make(map[*store][]int)
	for i := range models {
		m := &models[i]
		if s := r.of(m.URL); s != nil && s.read(s.model(m.URL).name) && !m.Uploading {
			read[s] = append(read[s], i)
		}
	}
	for s, list := range read {
		before := make(map[int]string)
		for _, i := range list {
			before[i] = s.model(models[i].URL).stamp
		}
		only := ""
		if len(list) == 1 {
			only = s.model(models[list[0]].URL).name
		}
		failed := s.refresh(ctx, only) != nil
		for _, i := range list {
			if m := &models[i]; failed || s.model(m.URL).stamp != before[i] {
				m.Torn, m.Changing = true, true
				r.evict(m.URL)
			}
		}
	}
}

func (r *remotes) evict(dir string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.models, dir)
}

// ReadDir implements [Files].
func (r *remotes) ReadDir(dir string) ([]fs.DirEntry, error) {
	if s := r.of(dir); s != nil {
		return s.ReadDir(dir)
	}
	return r.Local.ReadDir(dir)
}

// Stat implements [Files].
func (r *remotes) Stat(name string) (fs.FileInfo, error) {
	if s := r.of(name); s != nil {
		return s.Stat(name)
	}
	return r.Local.Stat(name)
}

// Lstat implements [Files]. Stores have no links.
func (r *remotes) Lstat(name string) (fs.FileInfo, error) {
	if s := r.of(name); s != nil {
		return s.Stat(name)
	}
	return r.Local.Lstat(name)
}

// Open implements [Files].
func (r *remotes) Open(name string) (modelfiles.File, error) {
	if s := r.of(name); s != nil {
		return s.Open(name)
	}
	return r.Local.Open(name)
}

// URL implements [Files]. In a store a name is a URL.
func (r *remotes) URL(name string) string {
	if blob.Remote(name) {
		return name
	}
	return r.Local.URL(name)
}

// largeFile is from what size on, in bytes, a store is asked for a digest
// before a file is read.
const largeFile = 1 << 20

// SHA256 gives the digest of a large file, if its store keeps one.
func (r *remotes) SHA256(ctx context.Context, name string) (sum [sha256.Size]byte, known bool) {
	s := r.of(name)
	if s == nil {
		return sum, false
	}
	n, ok := s.node(name)
	if !ok || n.dir || n.object.Size < largeFile {
		return sum, false
	}
	return s.dir.SHA256(ctx, n.object)
}
