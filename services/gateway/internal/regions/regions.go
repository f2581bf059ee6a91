// Package regions implements the memory that clients share with a gateway: named regions of files in /dev/shm
// and of GPU memory, from which inputs are read and into which outputs are written.
//
// The gateway maps nothing. For a region of a file it holds a descriptor and copies the bytes with pread and
// pwrite: a client that truncates its file gets an error, whereas a mapping would end the process with SIGBUS.
// For a region of a GPU it holds a stream to the GPU's worker, which maps the memory and copies. What a client
// writes after its bytes were read has no effect on the request.
//
// A region belongs to the tenant that registered it. Other tenants cannot use, see or unregister it. They may
// register the same name, but not the same memory. Keys name only files of one directory: see [openFile].
package regions

import (
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Kind is a kind of memory that clients share.
type Kind string

// The kinds of shared memory.
const (
	System Kind = "system"
	CUDA   Kind = "cuda"
)

// Options configure a gateway's regions. A bound of 0 means no bound.
type Options struct {
	// Directory contains the clients' files; empty means /dev/shm.
	Directory string
	// MaxRegions and MaxBytes bound the regions of all tenants together, in number and
	// in registered bytes.
	MaxRegions, MaxBytes int64
	// GPUs are the GPUs whose memory clients may share; nil for none.
	GPUs GPUs
}

// Region describes a region: Size bytes of the file Key starting at Offset, or of the memory of the GPU with
// number Device.
type Region struct {
	Name, Key    string
	Offset, Size uint64
	Device       int64
}

// Owner owns regions. The zero value stands for everyone, without a policy.
type Owner struct {
	// Tenant says that there is a policy, and Name is the tenant's name.
	Tenant bool
	Name   string
}

// Regions are the regions of one gateway. A nil Regions has none, and refuses to register any. It is safe for
// concurrent use.
type Regions struct {
	options Options

	mu    sync.Mutex
	named map[Owner]map[string]*region // guarded by mu
	used  map[Owner]usage              // guarded by mu
	all   usage                        // guarded by mu
}

// region is a registered region. Its memory stays open while it is registered or a request uses it.
type region struct {
	Region
	kind   Kind
	owner  Owner
	memory memory
	users  int  // windows, and the registration itself while it is in progress; guarded by Regions.mu
	hidden bool // it is not registered yet; guarded by Regions.mu
	ending bool // it is unregistered once nobody uses it; guarded by Regions.mu
}

// memory contains a region's bytes. It is safe for concurrent use.
type memory interface {
	// identity identifies the memory, whatever its names are.
	identity() any
	// readAt fills data from the given offset of the region; writeAt writes data there.
	readAt(ctx context.Context, data []byte, offset uint64) error
	writeAt(ctx context.Context, data []byte, offset uint64) error
	// close waits at most until ctx is done.
	close(ctx context.Context)
}

// closeTimeout bounds how long closing a region waits for the worker that mapped it.
const closeTimeout = 5 * time.Second

// closeAll closes the memory of regions that have ended. No lock is held.
func closeAll(ended []memory) {
	if len(ended) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	for _, m := range ended {
		m.close(ctx)
	}
}

// usage is what one owner, or all owners, have registered.
type usage struct{ regions, bytes int64 }

// New returns Regions without any region.
func New(o Options) *Regions {
	if o.Directory == "" {
		o.Directory = "/dev/shm"
	}
	return &Regions{options: o, named: make(map[Owner]map[string]*region), used: make(map[Owner]usage)}
}

// Allowed refuses to register or unregister if clients may not share memory.
func (m *Regions) Allowed() error {
	if m == nil {
		return errs.New(errs.Unsupported, "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.")
	}
	return nil
}

// maxName is the maximum length of a region's name in bytes.
const maxName = 1024

// Register registers a region of system memory.
func (m *Regions) Register(owner Owner, r Region) error {
	if err := m.nameable(System, r.Name); err != nil {
		return err
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
	f.offset, f.region = int64(r.Offset), strings.Clone(r.Name) //nolint:gosec // checked before it is used
	if err = m.fitsLocked(owner, r, f); err == nil {
		err = m.admitLocked(owner, int64(r.Size)) //nolint:gosec // the file has as many bytes
	}
	if err != nil {
		f.close(context.Background())
		return err
	}
	m.addLocked(&region{Region: r, kind: System, owner: owner, memory: f})
	return nil
}

// nameable refuses a registration whose name no owner may use.
func (m *Regions) nameable(kind Kind, name string) error {
	if err := m.Allowed(); err != nil {
		return err
	}
	switch {
	case name == "":
		return Unnamed(kind)
	case len(name) > maxName:
		return errs.New(errs.InvalidParameter, "the name of a shared memory region has %d bytes, %d is the most", len(name), maxName)
	}
	return nil
}

// addLocked adds a region that was checked and admitted.
func (m *Regions) addLocked(r *region) {
	r.Name, r.Key = strings.Clone(r.Name), strings.Clone(r.Key) // they are parts of a message
	if m.named[r.owner] == nil {
		m.named[r.owner] = make(map[string]*region)
	}
	m.named[r.owner][r.Name] = r
	m.countLocked(r.owner, 1, int64(r.Size)) //nolint:gosec // it was admitted
}

// fitsLocked refuses a region that exceeds its file, or whose file belongs to another owner's region. The
// latter gets the error for a missing file, so that whoever may not use the file does not learn of it.
func (m *Regions) fitsLocked(owner Owner, r Region, f file) error {
	size, err := f.size()
	if err != nil {
		return cannotOpen(r.Key)
	}
	if end := r.Offset + r.Size; r.Size == 0 || end < r.Offset || end > uint64(size) { //nolint:gosec // sizes are positive
		return invalid(r.Name)
	}
	if m.foreignLocked(owner, f) {
		return cannotOpen(r.Key)
	}
	return nil
}

// foreignLocked reports whether memory belongs to another owner's region.
func (m *Regions) foreignLocked(owner Owner, of memory) bool {
	for other, regions := range m.named {
		if other == owner {
			continue
		}
		for _, r := range regions {
			if r.memory.identity() == of.identity() {
				return true
			}
		}
	}
	return false
}

// admitLocked refuses a region whose size would exceed the bounds. A tenant leaves a quarter of each bound to
// others.
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

// countLocked counts regions that are added or removed.
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

// RegisterCUDA registers a region of GPU memory by the handle that the client's CUDA gave. The region becomes
// visible once the GPU's worker has mapped it.
func (m *Regions) RegisterCUDA(ctx context.Context, owner Owner, r Region, handle []byte) error {
	if err := m.nameable(CUDA, r.Name); err != nil {
		return err
	}
	g, err := m.gpu(r, handle)
	m.mu.Lock()
	switch {
	case m.named[owner][r.Name] != nil:
		err = registered(r.Name)
	case err == nil && m.foreignLocked(owner, g):
		err = invalid(r.Name) // as for a handle to memory that does not exist
	case err == nil:
		err = m.admitLocked(owner, int64(r.Size)) //nolint:gosec // checked
	}
	if err != nil {
		m.mu.Unlock()
		return err
	}
	of := &region{Region: r, kind: CUDA, owner: owner, memory: g, users: 1, hidden: true}
	m.addLocked(of)
	m.mu.Unlock()
	if _, err = g.open(ctx); err != nil {
		err = g.refusal(ctx, err)
	}
	m.mu.Lock()
	of.hidden, of.ending = false, of.ending || err != nil
	of.users--
	ended := m.endLocked(of)
	m.mu.Unlock()
	closeAll(ended)
	return err
}

// gpu returns the memory of a GPU region, not mapped yet, or the reason why there is none.
func (m *Regions) gpu(r Region, handle []byte) (*gpuMemory, error) {
	const most = 1 << 50 // so that sums do not overflow
	switch {
	case m.options.GPUs == nil || !m.options.GPUs.There():
		return nil, errs.New(errs.InvalidParameter, "failed to register CUDA shared memory region: '%s', GPUs not supported", r.Name)
	case len(handle) != HandleBytes || r.Size == 0 || r.Size > most || r.Device < 0 || r.Device > math.MaxInt32:
		return nil, invalid(r.Name)
	}
	return newGPUMemory(m.options.GPUs, r, handle), nil
}

// invalid returns Triton's error for memory that cannot be used as registered.
func invalid(name string) *errs.Error {
	return errs.New(errs.RegionRange, "failed to register shared memory region '%s': invalid args", name)
}

// Status returns the named region of an owner, or all regions of a kind ordered by name if name is empty.
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
		r := m.knownLocked(owner, name)
		switch {
		case r == nil:
			return nil, notFound(kind, name)
		case kind != r.kind:
			return nil, errs.New(errs.RegionNotFound, "The region named '%s' is registered as %s shared memory, not %s shared memory", name, r.kind.text(), kind.text())
		}
		return []Region{r.Region}, nil
	}
	var list []Region
	for _, r := range m.named[owner] {
		if r.kind == kind && !r.hidden {
			list = append(list, r.Region)
		}
	}
	slices.SortFunc(list, func(a, b Region) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// text returns the kind as Triton writes it in sentences.
func (k Kind) text() string {
	if k == CUDA {
		return "CUDA"
	}
	return string(k)
}

// knownLocked returns the region with a name, once it is registered.
func (m *Regions) knownLocked(owner Owner, name string) *region {
	if r := m.named[owner][name]; r != nil && !r.hidden {
		return r
	}
	return nil
}

// Unregister unregisters the named region of an owner, or all of a kind if name is empty. A region in use stays
// until the requests end; others are unmapped when Unregister returns, if their worker can be reached. The
// region need not exist.
func (m *Regions) Unregister(owner Owner, kind Kind, name string) error {
	if err := m.Allowed(); err != nil {
		return err
	}
	var ended []memory
	m.mu.Lock()
	for of, r := range m.named[owner] {
		if kind == r.kind && (name == "" || of == name) {
			r.ending = true
			ended = append(ended, m.endLocked(r)...)
		}
	}
	m.mu.Unlock()
	closeAll(ended)
	return nil
}

// endLocked removes a region that is unregistered and not in use. It returns the region's memory, which the
// caller closes.
func (m *Regions) endLocked(r *region) []memory {
	if !r.ending || r.users > 0 {
		return nil
	}
	delete(m.named[r.owner], r.Name)
	if len(m.named[r.owner]) == 0 {
		delete(m.named, r.owner)
	}
	m.countLocked(r.owner, -1, -int64(r.Size)) //nolint:gosec // as it was counted
	return []memory{r.memory}
}

// Close unregisters every region. Regions in use stay until they are released.
func (m *Regions) Close() {
	if m == nil {
		return
	}
	var ended []memory
	m.mu.Lock()
	for _, regions := range m.named {
		for _, r := range regions {
			r.ending = true
			ended = append(ended, m.endLocked(r)...)
		}
	}
	m.mu.Unlock()
	closeAll(ended)
}

// Registered returns the number of regions and their total bytes.
func (m *Regions) Registered() (regions, bytes int64) {
	if m == nil {
		return 0, 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all.regions, m.all.bytes
}

// Unnamed returns the error for registering a region without a name.
func Unnamed(kind Kind) error {
	return errs.New(errs.InvalidParameter, "'region name' is necessary to register %s shared memory region", kind)
}

func registered(name string) error {
	return errs.New(errs.AlreadyExists, "shared memory region '%s' already in manager", name)
}

func notFound(kind Kind, name string) error {
	return errs.New(errs.RegionNotFound, "Unable to find %s shared memory region: '%s'", kind, name)
}
