// Package regions is the memory that clients share with a gateway: named regions of
// files in /dev/shm, from which inputs are read and into which outputs are written.
//
// Nothing is mapped. A region is a descriptor, and its bytes are copied with pread and
// pwrite: a client that truncates its file gets an error, where a mapping would end the
// process with SIGBUS, and one that changes its bytes after they were checked changes
// nothing that is used.
//
// A region belongs to the tenant that registered it. Other tenants cannot use, see or
// unregister it, may register the same name, and cannot register the same file. Keys name
// files of one directory alone: see [openFile].
package regions

import (
	"slices"
	"strings"
	"sync"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Kind is a kind of memory that clients share.
type Kind string

// The kinds of shared memory. There are no regions of CUDA memory yet.
const (
	System Kind = "system"
	CUDA   Kind = "cuda"
)

// Options bound a gateway's regions. A bound of 0 is none.
type Options struct {
	// Directory has the files of clients; empty is /dev/shm.
	Directory string
	// MaxRegions and MaxBytes bound the regions of all tenants together, in number and
	// in registered bytes.
	MaxRegions, MaxBytes int64
}

// Region describes a region of system memory: Size bytes of the file Key from Offset on.
type Region struct {
	Name, Key    string
	Offset, Size uint64
}

// Owner is whose a region is. The zero value is everybody, without a policy.
type Owner struct {
	// Tenant says that there is a policy, and Name is its tenant's.
	Tenant bool
	Name   string
}

// Regions are the regions of one gateway. A nil Regions has none, and refuses to register
// any. It is safe for concurrent use.
type Regions struct {
	options Options

	mu    sync.Mutex
	named map[Owner]map[string]*region // guarded by mu
	used  map[Owner]usage              // guarded by mu
	all   usage                        // guarded by mu
}

// region is a registered region. Its descriptor is open while it is registered or a
// request uses it.
type region struct {
	Region
	owner  Owner
	file   file
	users  int  // windows; guarded by Regions.mu
	ending bool // it is unregistered when nobody uses it any more; guarded by Regions.mu
}

// usage is what an owner, or all of them, have registered.
type usage struct{ regions, bytes int64 }

// New returns regions, none of which are registered.
func New(o Options) *Regions {
	if o.Directory == "" {
		o.Directory = "/dev/shm"
	}
	return &Regions{options: o, named: make(map[Owner]map[string]*region), used: make(map[Owner]usage)}
}

// Allowed refuses to register or unregister where clients share no memory.
func (m *Regions) Allowed() error {
	if m == nil {
		return errs.New(errs.Unsupported, "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.")
	}
	return nil
}

// maxName is the most bytes of a region's name.
const maxName = 1024

// Register registers a region of system memory.
func (m *Regions) Register(owner Owner, r Region) error {
	if err := m.Allowed(); err != nil {
		return err
	}
	switch {
	case r.Name == "":
		return Unnamed(System)
	case len(r.Name) > maxName:
		return errs.New(errs.InvalidParameter, "the name of a shared memory region has %d bytes, %d is the most", len(r.Name), maxName)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.named[owner][r.Name] != nil {
		return registered(r.Name)
	}
	f, err := openFile(m.options.Directory, r.Name, r.Key)
	if err != nil {
		return err
	}
	if err = m.fitsLocked(owner, r, f); err == nil {
		err = m.admitLocked(owner, int64(r.Size)) //nolint:gosec // the file has as many bytes
	}
	if err != nil {
		f.close()
		return err
	}
	r.Name, r.Key = strings.Clone(r.Name), strings.Clone(r.Key) // they are parts of a message
	if m.named[owner] == nil {
		m.named[owner] = make(map[string]*region)
	}
	m.named[owner][r.Name] = &region{Region: r, owner: owner, file: f}
	m.countLocked(owner, 1, int64(r.Size)) //nolint:gosec // the file has as many bytes
	return nil
}

// fitsLocked refuses a region that lies outside its file, or whose file is that of a
// region of another owner. The latter gets the text of a file that is not there: who may
// not use it does not learn of it.
func (m *Regions) fitsLocked(owner Owner, r Region, f file) error {
	size, err := f.size()
	if err != nil {
		return cannotOpen(r.Key)
	}
	if end := r.Offset + r.Size; r.Size == 0 || end < r.Offset || end > uint64(size) { //nolint:gosec // sizes are positive
		return errs.New(errs.RegionRange, "failed to register shared memory region '%s': invalid args", r.Name)
	}
	for other, regions := range m.named {
		if other == owner {
			continue
		}
		for _, of := range regions {
			if of.file.identity == f.identity {
				return cannotOpen(r.Key)
			}
		}
	}
	return nil
}

// admitLocked refuses a region of so many bytes beyond the bounds. A tenant leaves a
// quarter of them to others.
func (m *Regions) admitLocked(owner Owner, size int64) error {
	of := func(bound int64) int64 {
		if owner.Tenant && bound > 0 {
			return max(bound/4*3, 1)
		}
		return bound
	}
	for _, q := range []struct {
		used           usage
		regions, bytes int64
	}{
		{m.used[owner], of(m.options.MaxRegions), of(m.options.MaxBytes)},
		{m.all, m.options.MaxRegions, m.options.MaxBytes},
	} {
		switch {
		case q.regions > 0 && q.used.regions >= q.regions:
			return errs.New(errs.RegionQuota, "as many shared memory regions are registered as may be, %d: unregister some, or raise --client-shm-max-regions", q.regions)
		case q.bytes > 0 && size > q.bytes-q.used.bytes:
			return errs.New(errs.RegionQuota, "a shared memory region of %d bytes would exceed the maximum of %d bytes in all: unregister some, or raise --client-shm-max-bytes", size, q.bytes)
		}
	}
	return nil
}

// countLocked counts regions that come or go.
func (m *Regions) countLocked(owner Owner, regions, bytes int64) {
	m.all.regions += regions
	m.all.bytes += bytes
	u := m.used[owner]
	if u.regions += regions; u.regions == 0 {
		delete(m.used, owner)
		return
	}
	u.bytes += bytes
	m.used[owner] = u
}

// HandleBytes is the size of a handle of CUDA memory in bytes: that of cudaIpcMemHandle_t.
const HandleBytes = 64

// RegisterCUDA refuses to register a region of CUDA memory.
func (m *Regions) RegisterCUDA(owner Owner, name string) error {
	if err := m.Allowed(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.named[owner][name] != nil {
		return registered(name)
	}
	return errs.New(errs.InvalidParameter, "failed to register CUDA shared memory region: '%s', GPUs not supported", name)
}

// Status returns the named region of an owner, or all of a kind in the order of their
// names where name is empty.
func (m *Regions) Status(owner Owner, kind Kind, name string) ([]Region, error) {
	if m == nil {
		if name != "" {
			return nil, notFound(kind, name)
		}
		return nil, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if name != "" {
		r := m.named[owner][name]
		switch {
		case r == nil:
			return nil, notFound(kind, name)
		case kind != System:
			return nil, errs.New(errs.RegionNotFound, "The region named '%s' is registered as system shared memory, not CUDA shared memory", name)
		}
		return []Region{r.Region}, nil
	}
	if kind != System {
		return nil, nil
	}
	var list []Region
	for _, r := range m.named[owner] {
		list = append(list, r.Region)
	}
	slices.SortFunc(list, func(a, b Region) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// Unregister unregisters the named region of an owner, or all of a kind where name is
// empty. A region that requests use stays until they end. There may be no such region.
func (m *Regions) Unregister(owner Owner, kind Kind, name string) error {
	if err := m.Allowed(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for of, r := range m.named[owner] {
		if kind == System && (name == "" || of == name) {
			r.ending = true
			m.endLocked(r)
		}
	}
	return nil
}

// endLocked forgets a region that is unregistered and not in use.
func (m *Regions) endLocked(r *region) {
	if !r.ending || r.users > 0 {
		return
	}
	delete(m.named[r.owner], r.Name)
	if len(m.named[r.owner]) == 0 {
		delete(m.named, r.owner)
	}
	m.countLocked(r.owner, -1, -int64(r.Size)) //nolint:gosec // as it was counted
	r.file.close()
}

// Close unregisters every region. Those in use stay until they are not.
func (m *Regions) Close() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, regions := range m.named {
		for _, r := range regions {
			r.ending = true
			m.endLocked(r)
		}
	}
}

// Registered returns how many regions there are, and their bytes.
func (m *Regions) Registered() (regions, bytes int64) {
	if m == nil {
		return 0, 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all.regions, m.all.bytes
}

// Unnamed refuses to register a region without a name.
func Unnamed(kind Kind) error {
	return errs.New(errs.InvalidParameter, "'region name' is necessary to register %s shared memory region", kind)
}

func registered(name string) error {
	return errs.New(errs.AlreadyExists, "shared memory region '%s' already in manager", name)
}

func notFound(kind Kind, name string) error {
	return errs.New(errs.RegionNotFound, "Unable to find %s shared memory region: '%s'", kind, name)
}
