package regions_test

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/gateway/internal/regions"
)

// refusal is an error as a caller sees it.
type refusal struct {
	Reason errs.Reason
	Text   string
}

func refusalOf(err error) refusal {
	if err == nil {
		return refusal{}
	}
	e := errs.From(err)
	return refusal{e.Reason, e.Msg}
}

// directory is one with the files a and b of 100 bytes, and what is no file.
func directory(t testing.TB) string {
	t.Helper()
	outside := filepath.Join(t.TempDir(), "outside")
	dir := t.TempDir()
	for _, err := range []error{
		os.WriteFile(outside, make([]byte, 100), 0o600),
		os.WriteFile(filepath.Join(dir, "a"), []byte(strings.Repeat("0123456789", 10)), 0o600),
		os.WriteFile(filepath.Join(dir, "b"), make([]byte, 100), 0o600),
		os.WriteFile(filepath.Join(dir, "triton_python_backend_shm_region_1"), make([]byte, 100), 0o600),
		os.WriteFile(filepath.Join(dir, "nereid-1"), make([]byte, 100), 0o600),
		os.Symlink(outside, filepath.Join(dir, "link")),
		os.Symlink("a", filepath.Join(dir, "inner")),
		os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "same")),
		os.Mkdir(filepath.Join(dir, "folder"), 0o700),
		os.WriteFile(filepath.Join(dir, "folder", "a"), make([]byte, 100), 0o600),
		unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func within(t testing.TB, o regions.Options) *regions.Regions {
	t.Helper()
	if o.Directory == "" {
		o.Directory = directory(t)
	}
	m := regions.New(o)
	t.Cleanup(m.Close)
	return m
}

var nobody = regions.Owner{}

func named(name string) regions.Owner { return regions.Owner{Tenant: true, Name: name} }

// bounded ends a test that hangs, such as one that opens a FIFO and waits for its writer.
func bounded(t *testing.T, run func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); run() }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("it hangs")
	}
}

func TestOnlyFilesOfTheDirectoryAreRegistered(t *testing.T) {
	dir := directory(t)
	absent := func(key string) refusal {
		return refusal{errs.RegionUnavailable, "Unable to open shared memory region: '" + key + "'"}
	}
	reserved := func(key, prefix string) refusal {
		return refusal{errs.InvalidParameter, "cannot register shared memory region 'r' with key '" + key + "' as the key contains the reserved prefix '" + prefix + "'"}
	}
	range_ := refusal{errs.RegionRange, "failed to register shared memory region 'r': invalid args"}
	for name, c := range map[string]struct {
		key          string
		offset, size uint64
		want         refusal
	}{
		"a file":                      {"/a", 0, 100, refusal{}},
		"a file without a slash":      {"a", 0, 100, refusal{}},
		"a file behind slashes":       {"///a", 0, 100, refusal{}},
		"a part of it, at any offset": {"/a", 3, 97, refusal{}},
		"more than the file":          {"/a", 0, 101, range_},
		"an end beyond the file":      {"/a", 4, 97, range_},
		"an offset beyond the file":   {"/a", 101, 1, range_},
		"a sum that overflows":        {"/a", 8, math.MaxUint64 - 4, range_},
		"an offset that overflows":    {"/a", math.MaxUint64, 2, range_},
		"no bytes":                    {"/a", 0, 0, range_},
		"no key":                      {"", 0, 1, absent("")},
		"slashes alone":               {"//", 0, 1, refusal{errs.InvalidParameter, "failed to register shared memory region 'r': invalid shm key '//'"}},
		"no such file":                {"/c", 0, 1, absent("/c")},
		"a file of a folder":          {"/folder/a", 0, 1, absent("/folder/a")},
		"a way out":                   {"../outside", 0, 1, absent("../outside")},
		"a way out and in":            {"folder/../a", 0, 1, absent("folder/../a")},
		"the directory":               {".", 0, 1, absent(".")},
		"its parent":                  {"/..", 0, 1, absent("/..")},
		"a folder":                    {"/folder", 0, 1, absent("/folder")},
		"a link out":                  {"/link", 0, 1, absent("/link")},
		"a link within":               {"/inner", 0, 1, absent("/inner")},
		"a FIFO":                      {"/fifo", 0, 1, absent("/fifo")},
		"a name that ends early":      {"/a\x00b", 0, 1, absent("/a\x00b")},
		"a name too long":             {"/" + strings.Repeat("n", 256), 0, 1, absent("/" + strings.Repeat("n", 256))},
		"memory of Python models":     {"/triton_python_backend_shm_region_1", 0, 1, reserved("/triton_python_backend_shm_region_1", "triton_python_backend_shm_region_")},
		"the same, behind slashes":    {"//triton_python_backend_shm_region_1", 0, 1, reserved("//triton_python_backend_shm_region_1", "triton_python_backend_shm_region_")},
		"memory of the server":        {"nereid-1", 0, 1, reserved("nereid-1", "nereid")},
	} {
		t.Run(name, func(t *testing.T) {
			m := within(t, regions.Options{Directory: dir})
			bounded(t, func() {
				err := m.Register(nobody, regions.Region{Name: "r", Key: c.key, Offset: c.offset, Size: c.size})
				if d := cmp.Diff(c.want, refusalOf(err)); d != "" {
					t.Error(d)
				}
			})
			if n, _ := m.Registered(); (n == 1) != (c.want == refusal{}) {
				t.Errorf("%d regions are registered", n)
			}
		})
	}
}

func TestNamesAreTakenOnce(t *testing.T) {
	m := within(t, regions.Options{})
	register := func(name, key string) error {
		return m.Register(nobody, regions.Region{Name: name, Key: key, Size: 10})
	}
	twice := refusal{errs.AlreadyExists, "shared memory region 'r' already in manager"}
	for _, c := range []struct {
		err  error
		want refusal
	}{
		{register("r", "/a"), refusal{}},
		{register("r", "/b"), twice},
		{register("s", "/a"), refusal{}}, // one file may be of several regions
		{register("", "/a"), refusal{errs.InvalidParameter, "'region name' is necessary to register system shared memory region"}},
		{register(strings.Repeat("n", 1025), "/a"), refusal{errs.InvalidParameter, "the name of a shared memory region has 1025 bytes, 1024 is the most"}},
		{m.RegisterCUDA(t.Context(), nobody, regions.Region{Name: "r", Size: 1}, make([]byte, 64)), twice},
		{m.RegisterCUDA(t.Context(), nobody, regions.Region{Name: "c", Size: 1}, make([]byte, 64)), refusal{errs.InvalidParameter, "failed to register CUDA shared memory region: 'c', GPUs not supported"}},
		{m.Unregister(nobody, regions.CUDA, "r"), refusal{}},
		{register("r", "/b"), twice},
		{m.Unregister(nobody, regions.System, "r"), refusal{}},
		{m.Unregister(nobody, regions.System, "none"), refusal{}},
		{register("r", "/b"), refusal{}},
	} {
		if d := cmp.Diff(c.want, refusalOf(c.err)); d != "" {
			t.Error(d)
		}
	}
	list, err := m.Status(nobody, regions.System, "")
	want := []regions.Region{{Name: "r", Key: "/b", Size: 10}, {Name: "s", Key: "/a", Size: 10}}
	if d := cmp.Diff(want, list); d != "" || err != nil {
		t.Error(d, err)
	}
	_, err = m.Status(nobody, regions.CUDA, "r")
	if d := cmp.Diff(refusal{errs.RegionNotFound, "The region named 'r' is registered as system shared memory, not CUDA shared memory"}, refusalOf(err)); d != "" {
		t.Error(d)
	}
	if list, err := m.Status(nobody, regions.CUDA, ""); len(list) != 0 || err != nil {
		t.Error(list, err)
	}
}

func TestRangesStayWithinTheirRegion(t *testing.T) {
	m := within(t, regions.Options{})
	if err := m.Register(nobody, regions.Region{Name: "r", Key: "/a", Offset: 10, Size: 50}); err != nil {
		t.Fatal(err)
	}
	const offset, end = "Invalid offset for shared memory region: 'r'", "Invalid offset + byte size for shared memory region: 'r'"
	for name, c := range map[string]struct {
		offset, size uint64
		want         refusal
	}{
		"all":                      {0, 50, refusal{}},
		"the last byte":            {49, 1, refusal{}},
		"an offset at the end":     {50, 1, refusal{errs.RegionRange, offset}},
		"a negative offset":        {math.MaxUint64 - 31, 8, refusal{errs.RegionRange, offset}},
		"a size beyond the region": {0, 51, refusal{errs.RegionRange, end}},
		"an end beyond the region": {49, 2, refusal{errs.RegionRange, end}},
		"a size beyond the file":   {0, 1 << 40, refusal{errs.RegionRange, end}},
		"no bytes":                 {0, 0, refusal{errs.RegionRange, end}},
		"a sum that overflows": {32, math.MaxUint64 - 31, refusal{
			errs.RegionRange,
			"Integer overflow detected: byte_size (18446744073709551584) + offset (32) exceeds maximum value (18446744073709551615) for region 'r'",
		}},
	} {
		w, err := m.Open(nobody, regions.Range{Region: "r", Offset: c.offset, Size: c.size})
		if d := cmp.Diff(c.want, refusalOf(err)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if err == nil {
			w.Close()
		}
	}
	_, err := m.Open(nobody, regions.Range{Region: "s", Size: 1})
	if d := cmp.Diff(refusal{errs.RegionNotFound, "Unable to find shared memory region: 's'"}, refusalOf(err)); d != "" {
		t.Error(d)
	}
}

func TestWindowsReadAndWriteTheFile(t *testing.T) {
	dir := directory(t)
	m := within(t, regions.Options{Directory: dir})
	if err := m.Register(nobody, regions.Region{Name: "r", Key: "/a", Offset: 10, Size: 50}); err != nil {
		t.Fatal(err)
	}
	w, err := m.Open(nobody, regions.Range{Region: "r", Offset: 5, Size: 20})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	data := make([]byte, w.Size())
	if err := w.Read(t.Context(), data); err != nil || string(data) != "56789012345678901234" {
		t.Errorf("%q, %v", data, err)
	}
	if err := w.Write(t.Context(), []byte("abc")); err != nil {
		t.Error(err)
	}
	file, err := os.ReadFile(filepath.Join(dir, "a"))
	if want := "012345678901234abc89"; err != nil || len(file) != 100 || string(file[:20]) != want {
		t.Errorf("the file has %q, want %q at the beginning: %v", file, want, err)
	}
}

func TestAFileThatShrinksIsAnError(t *testing.T) {
	dir := directory(t)
	m := within(t, regions.Options{Directory: dir})
	if err := m.Register(nobody, regions.Region{Name: "r", Key: "/a", Size: 100}); err != nil {
		t.Fatal(err)
	}
	w, err := m.Open(nobody, regions.Range{Region: "r", Offset: 40, Size: 60})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	want := refusal{errs.RegionChanged, "shared memory region 'r' has changed: its file is shorter than when the region was registered"}
	for _, size := range []int64{99, 40, 39, 0} {
		if err := os.Truncate(filepath.Join(dir, "a"), size); err != nil {
			t.Fatal(err)
		}
		for what, err := range map[string]error{"read": w.Read(t.Context(), make([]byte, 60)), "written": w.Write(t.Context(), make([]byte, 60))} {
			if d := cmp.Diff(want, refusalOf(err)); d != "" {
				t.Errorf("%s with %d bytes left: %s", what, size, d)
			}
		}
		if s, err := os.Stat(filepath.Join(dir, "a")); err != nil || s.Size() != size {
			t.Errorf("writing has changed the size of the file to %d: %v", s.Size(), err)
		}
	}
	if err := os.Truncate(filepath.Join(dir, "a"), 100); err != nil {
		t.Fatal(err)
	}
	if err := w.Read(t.Context(), make([]byte, 60)); err != nil {
		t.Error("the file has its size again:", err)
	}
}

// As with shm_unlink: whoever has a file open keeps it.
func TestAFileThatIsRemovedStaysWithItsRegion(t *testing.T) {
	dir := directory(t)
	m := within(t, regions.Options{Directory: dir})
	if err := m.Register(nobody, regions.Region{Name: "r", Key: "/a", Size: 100}); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "b"), filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	w, err := m.Open(nobody, regions.Range{Region: "r", Size: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if data := make([]byte, 4); w.Read(t.Context(), data) != nil || string(data) != "0123" {
		t.Errorf("the region has %q", data)
	}
}

func TestARegionInUseStaysUntilItIsNot(t *testing.T) {
	m := within(t, regions.Options{MaxRegions: 1})
	if err := m.Register(nobody, regions.Region{Name: "r", Key: "/a", Size: 100}); err != nil {
		t.Fatal(err)
	}
	of := regions.Range{Region: "r", Size: 4}
	first, err := m.Open(nobody, of)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := m.Unregister(nobody, regions.System, ""); err != nil {
			t.Fatal(err)
		}
	}
	second, err := m.Open(nobody, of) // as with Triton
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	if list, err := m.Status(nobody, regions.System, "r"); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
	if err := second.Read(t.Context(), make([]byte, 4)); err != nil {
		t.Error(err)
	}
	second.Close()
	if _, err := m.Status(nobody, regions.System, "r"); errs.Of(err) != errs.RegionNotFound {
		t.Errorf("it is still registered: %v", err)
	}
	if err := m.Register(nobody, regions.Region{Name: "r", Key: "/b", Size: 100}); err != nil {
		t.Error("its place is not free:", err)
	}
}

func TestRegionsBelongToTheirTenant(t *testing.T) {
	m := within(t, regions.Options{})
	mine, other := named("mine"), named("other")
	if err := m.Register(mine, regions.Region{Name: "r", Key: "/a", Size: 100}); err != nil {
		t.Fatal(err)
	}
	absent := refusal{errs.RegionNotFound, "Unable to find shared memory region: 'r'"}
	for _, owner := range []regions.Owner{other, nobody, {Tenant: true}, {Name: "mine"}} {
		if _, err := m.Open(owner, regions.Range{Region: "r", Size: 1}); cmp.Diff(absent, refusalOf(err)) != "" {
			t.Errorf("%v opens it: %v", owner, err)
		}
		if list, err := m.Status(owner, regions.System, ""); len(list) != 0 || err != nil {
			t.Errorf("%v sees it: %v, %v", owner, list, err)
		}
		if _, err := m.Status(owner, regions.System, "r"); errs.Of(err) != errs.RegionNotFound {
			t.Errorf("%v sees it: %v", owner, err)
		}
		if err := m.Unregister(owner, regions.System, ""); err != nil {
			t.Error(err)
		}
		if err := m.Unregister(owner, regions.System, "r"); err != nil {
			t.Error(err)
		}
		// The same file under its name, another one, or behind a slash.
		for _, key := range []string{"/a", "same", "//a"} {
			want := refusal{errs.RegionUnavailable, "Unable to open shared memory region: '" + key + "'"}
			if err := m.Register(owner, regions.Region{Name: "mine", Key: key, Size: 1}); cmp.Diff(want, refusalOf(err)) != "" {
				t.Errorf("%v registers the file: %v", owner, err)
			}
		}
	}
	if err := m.Register(other, regions.Region{Name: "r", Key: "/b", Size: 100}); err != nil {
		t.Error("names are a tenant's own:", err)
	}
	if err := m.Unregister(other, regions.System, ""); err != nil {
		t.Error(err)
	}
	if list, err := m.Status(mine, regions.System, ""); len(list) != 1 || err != nil {
		t.Errorf("%v, %v", list, err)
	}
}

func TestRegionsAndBytesAreBounded(t *testing.T) {
	m := within(t, regions.Options{MaxRegions: 4, MaxBytes: 200})
	register := func(owner regions.Owner, name, key string, size uint64) errs.Reason {
		return errs.Of(m.Register(owner, regions.Region{Name: name, Key: key, Size: size}))
	}
	mine, other, third := named("mine"), named("other"), named("third")
	for _, c := range []struct {
		what      string
		got, want errs.Reason
	}{
		{"the first", register(mine, "1", "/a", 100), ""},
		{"more than a tenant's bytes", register(mine, "2", "/a", 51), errs.RegionQuota},
		{"as many as it may", register(mine, "2", "/a", 49), ""},
		{"its last region", register(mine, "3", "/a", 1), ""},
		{"one more region", register(mine, "4", "/a", 1), errs.RegionQuota},
		{"more than all bytes", register(other, "1", "/b", 51), errs.RegionQuota},
		{"the rest for another", register(other, "1", "/b", 50), ""},
		{"nothing is left", register(third, "1", "/c", 1), errs.RegionUnavailable},
		{"a region that ends", errs.Of(m.Unregister(mine, regions.System, "2")), ""},
		{"gives back what it had", register(mine, "4", "/a", 49), ""},
		{"and no more", register(mine, "5", "/a", 1), errs.RegionQuota},
	} {
		if c.got != c.want {
			t.Errorf("%s: %q, want %q", c.what, c.got, c.want)
		}
	}
	if n, bytes := m.Registered(); n != 4 || bytes != 200 {
		t.Errorf("%d regions of %d bytes", n, bytes)
	}
}

// What is refused, and what ends, leaves no descriptor open.
func TestDescriptorsAreClosed(t *testing.T) {
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(list)
	}
	m := within(t, regions.Options{MaxRegions: 1})
	before := open()
	for _, key := range []string{"/a", "/a", "/folder", "/fifo", "/link", "/none", "/b"} {
		_ = m.Register(nobody, regions.Region{Name: "r", Key: key, Size: 100})
		_ = m.Register(named("x"), regions.Region{Name: "s", Key: key, Size: 1000})
	}
	if n := open(); n != before+1 {
		t.Errorf("%d descriptors beside that of the region", n-before-1)
	}
	m.Close()
	if n := open(); n != before {
		t.Errorf("%d descriptors at the end", n-before)
	}
}

func TestNoneAreAllowedByDefault(t *testing.T) {
	var m *regions.Regions
	disabled := refusal{errs.Unsupported, "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."}
	for _, err := range []error{m.Register(nobody, regions.Region{Name: "r", Key: "/a", Size: 1}), m.RegisterCUDA(t.Context(), nobody, regions.Region{Name: "r", Size: 1}, make([]byte, 64)), m.Unregister(nobody, regions.System, "r")} {
		if d := cmp.Diff(disabled, refusalOf(err)); d != "" {
			t.Error(d)
		}
	}
	if _, err := m.Open(nobody, regions.Range{Region: "r", Size: 1}); errs.Of(err) != errs.RegionNotFound {
		t.Error(err)
	}
	if list, err := m.Status(nobody, regions.System, ""); len(list) != 0 || err != nil {
		t.Error(list, err)
	}
	m.Close()
}

// FuzzRegister registers any region and opens any range of it: what is read lies in files
// of the directory, and within the region.
func FuzzRegister(f *testing.F) {
	for _, key := range []string{"/a", "a", "../outside", "/link", "/fifo", "folder/a", ".", "//", "/nereid-1", "a\x00", "/same"} {
		f.Add("r", key, uint64(0), uint64(100), uint64(0), uint64(8))
		f.Add("r", key, uint64(math.MaxUint64), uint64(2), uint64(math.MaxUint64), uint64(math.MaxUint64))
	}
	dir := directory(f)
	content := []byte(strings.Repeat("0123456789", 10))
	f.Fuzz(func(t *testing.T, name, key string, offset, size, at, n uint64) {
		m := regions.New(regions.Options{Directory: dir})
		defer m.Close()
		if err := m.Register(nobody, regions.Region{Name: name, Key: key, Offset: offset, Size: size}); err != nil {
			if !errs.Of(err).Known() {
				t.Errorf("an error without a reason: %v", err)
			}
			return
		}
		base := strings.TrimLeft(key, "/")
		if base != "a" && base != "b" && base != "same" || offset > 100 || size > 100-offset {
			t.Fatalf("registered: %q, %d, %d", key, offset, size)
		}
		w, err := m.Open(nobody, regions.Range{Region: name, Offset: at, Size: n})
		if err != nil {
			return
		}
		defer w.Close()
		if at > size || n > size-at || w.Size() != int64(n) {
			t.Fatalf("opened: %d, %d of %d bytes", at, n, size)
		}
		data := make([]byte, w.Size())
		if err := w.Read(t.Context(), data); err != nil {
			t.Fatal(err)
		}
		if base != "b" && string(data) != string(content[offset+at:][:n]) {
			t.Errorf("read %q", data)
		}
	})
}
