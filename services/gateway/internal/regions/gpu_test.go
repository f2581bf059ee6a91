package regions_test

import (
	"bytes"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/plane/region"
	"github.com/nereid-serving/nereid/services/gateway/internal/regions"
)

// machine is one with GPU 0, whose worker is a real server over this process's memory.
type machine struct {
	t    *testing.T
	stop func() // ends the worker; nil without one

	mu     sync.Mutex
	at     []link.Peer
	memory map[byte][]byte // by the first byte of its handle
	mapped int
}

func newMachine(t *testing.T) *machine {
	m := &machine{t: t, memory: map[byte][]byte{1: bytes.Repeat([]byte("0123456789"), 10), 2: make([]byte, 100)}}
	m.begin()
	t.Cleanup(func() { m.stop() })
	return m
}

// begin begins a worker, as the node does where one has ended.
func (m *machine) begin() {
	path := filepath.Join(m.t.TempDir(), "s")
	l, err := (&net.ListenConfig{}).Listen(m.t.Context(), "unix", path)
	if err != nil {
		m.t.Fatal(err)
	}
	s := grpc.NewServer(link.ServerOptions(nil, nil)...)
	region.Register(s, m.open)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	m.mu.Lock()
	m.at = []link.Peer{{Address: "unix:" + path}}
	m.mu.Unlock()
	m.stop = sync.OnceFunc(func() {
		s.Stop()
		if err := <-ended; err != nil {
			m.t.Error(err)
		}
	})
}

func (m *machine) There() bool { return true }

func (m *machine) Workers(number int32) []link.Peer {
	m.mu.Lock()
	defer m.mu.Unlock()
	if number != 0 {
		return nil
	}
	return slices.Clone(m.at)
}

func (m *machine) open(_ int32, raw [region.HandleBytes]byte) (region.Memory, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.memory[raw[0]] == nil {
		return nil, fmt.Errorf("invalid argument")
	}
	m.mapped++
	return mapping{m, m.memory[raw[0]]}, nil
}

func (m *machine) mappings() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mapped
}

type mapping struct {
	machine *machine
	data    []byte
}

func (m mapping) Bytes() uint64 { return uint64(len(m.data)) }

func (m mapping) Read(data []byte, offset uint64) error {
	copy(data, m.data[offset:])
	return nil
}

func (m mapping) Write(data []byte, offset uint64) error {
	copy(m.data[offset:], data)
	return nil
}

func (m mapping) Close() {
	m.machine.mu.Lock()
	defer m.machine.mu.Unlock()
	m.machine.mapped--
}

func handle(memory byte) []byte {
	raw := make([]byte, regions.HandleBytes)
	raw[0] = memory
	return raw
}

// shareGPU registers all of a memory under a name.
func shareGPU(t *testing.T, m *regions.Regions, owner regions.Owner, name string, memory byte) {
	t.Helper()
	if err := m.RegisterCUDA(t.Context(), owner, regions.Region{Name: name, Size: 100}, handle(memory)); err != nil {
		t.Fatal(err)
	}
}

// copyOut reads a part of a region.
func copyOut(t *testing.T, m *regions.Regions, owner regions.Owner, of regions.Range) (string, error) {
	t.Helper()
	w, err := m.Open(owner, of)
	if err != nil {
		return "", err
	}
	defer w.Close()
	data := make([]byte, w.Size())
	err = w.Read(t.Context(), data)
	return string(data), err
}

func TestMemoryOfGPUsIsCopied(t *testing.T) {
	gpu := newMachine(t)
	m := within(t, regions.Options{GPUs: gpu})
	shareGPU(t, m, nobody, "in", 1)
	shareGPU(t, m, nobody, "out", 2)
	got, err := copyOut(t, m, nobody, regions.Range{Region: "in", Offset: 95, Size: 5})
	if err != nil || got != "56789" {
		t.Errorf("%q, %v", got, err)
	}
	w, err := m.Open(nobody, regions.Range{Region: "out", Offset: 7, Size: 4})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(t.Context(), []byte("abcd")); err != nil || string(gpu.memory[2][6:12]) != "\x00abcd\x00" {
		t.Errorf("%q, %v", gpu.memory[2][6:12], err)
	}
	list, err := m.Status(nobody, regions.CUDA, "")
	if d := cmp.Diff([]regions.Region{{Name: "in", Size: 100}, {Name: "out", Size: 100}}, list); d != "" || err != nil {
		t.Error(d, err)
	}
	if list, err := m.Status(nobody, regions.System, ""); len(list) != 0 || err != nil {
		t.Error(list, err)
	}
	_, err = m.Status(nobody, regions.System, "in")
	if d := cmp.Diff(refusal{errs.RegionNotFound, "The region named 'in' is registered as CUDA shared memory, not system shared memory"}, refusalOf(err)); d != "" {
		t.Error(d)
	}
	// A region in use stays mapped until it is not; another is unmapped at once.
	if err := m.Unregister(nobody, regions.System, ""); err != nil || gpu.mappings() != 2 {
		t.Errorf("%d mappings, %v", gpu.mappings(), err)
	}
	if err := m.Unregister(nobody, regions.CUDA, ""); err != nil || gpu.mappings() != 1 {
		t.Errorf("%d mappings after the end of one region, %v", gpu.mappings(), err)
	}
	if err := w.Write(t.Context(), []byte("efgh")); err != nil || string(gpu.memory[2][7:11]) != "efgh" {
		t.Errorf("%q, %v", gpu.memory[2][7:11], err)
	}
	w.Close()
	if n, all := m.Registered(); gpu.mappings() != 0 || n != 0 || all != 0 {
		t.Errorf("%d mappings, %d regions of %d bytes", gpu.mappings(), n, all)
	}
	shareGPU(t, m, nobody, "in", 1)
	m.Close()
	if gpu.mappings() != 0 {
		t.Error("a gateway that stops leaves a mapping")
	}
}

func TestMemoryOfGPUsThatCannotBeRegistered(t *testing.T) {
	gpu := newMachine(t)
	m := within(t, regions.Options{GPUs: gpu, MaxRegions: 4, MaxBytes: 400})
	a, b := named("a"), named("b")
	shareGPU(t, m, a, "r", 1)
	const invalid = "failed to register shared memory region 's': invalid args"
	for name, c := range map[string]struct {
		owner  regions.Owner
		region string
		device int64
		memory byte
		size   uint64
		bytes  int
		reason errs.Reason
		want   string
	}{
		"the name of another region":     {owner: a, region: "r", memory: 2, size: 1, bytes: 64, reason: errs.AlreadyExists, want: "shared memory region 'r' already in manager"},
		"a handle that is none":          {owner: a, region: "s", memory: 9, size: 1, bytes: 64, reason: errs.RegionRange, want: invalid + " (GPU 0: invalid argument)"},
		"more than there is":             {owner: a, region: "s", memory: 2, size: 101, bytes: 64, reason: errs.RegionRange, want: invalid + " (GPU 0: the memory has 100 bytes)"},
		"as much as there can be":        {owner: a, region: "s", memory: 2, size: 1<<64 - 1, bytes: 64, reason: errs.RegionRange, want: invalid},
		"nothing":                        {owner: a, region: "s", memory: 2, bytes: 64, reason: errs.RegionRange, want: invalid},
		"a device that is not there":     {owner: a, region: "s", device: 7, memory: 2, size: 1, bytes: 64, reason: errs.RegionRange, want: invalid + " (the gateway's machine has no worker of GPU 7)"},
		"a device that cannot be":        {owner: a, region: "s", device: -1, memory: 2, size: 1, bytes: 64, reason: errs.RegionRange, want: invalid},
		"a device beyond all":            {owner: a, region: "s", device: 1 << 32, memory: 2, size: 1, bytes: 64, reason: errs.RegionRange, want: invalid},
		"a handle that is short":         {owner: a, region: "s", memory: 2, size: 1, bytes: 63, reason: errs.RegionRange, want: invalid},
		"the memory of another tenant":   {owner: b, region: "s", memory: 1, size: 1, bytes: 64, reason: errs.RegionRange, want: invalid},
		"more bytes than a tenant's are": {owner: a, region: "s", memory: 2, size: 201, bytes: 64, reason: errs.RegionQuota, want: "a shared memory region of 201 bytes would exceed the maximum of 300 bytes in all: unregister some, or raise --client-shm-max-bytes"},
	} {
		err := m.RegisterCUDA(t.Context(), c.owner, regions.Region{Name: c.region, Device: c.device, Size: c.size}, handle(c.memory)[:c.bytes])
		if d := cmp.Diff(refusal{c.reason, c.want}, refusalOf(err)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if n, all := m.Registered(); n != 1 || all != 100 {
			t.Errorf("%s: %d regions of %d bytes are registered", name, n, all)
		}
	}
	if n := gpu.mappings(); n != 1 {
		t.Errorf("%d mappings, want one", n)
	}
	// Another tenant sees nothing of the region, and may have one of that name.
	if _, err := copyOut(t, m, b, regions.Range{Region: "r", Size: 1}); errs.Of(err) != errs.RegionNotFound {
		t.Errorf("another tenant reads it: %v", err)
	}
	if err := m.Unregister(b, regions.CUDA, ""); err != nil || gpu.mappings() != 1 {
		t.Errorf("another tenant unregisters it: %v", err)
	}
	shareGPU(t, m, b, "r", 2)
}

// A worker that ends takes its mappings with it; the next one maps the memory at its next use,
// unless that is gone.
func TestWorkersOfGPUsThatStartAgain(t *testing.T) {
	gpu := newMachine(t)
	m := within(t, regions.Options{GPUs: gpu})
	shareGPU(t, m, nobody, "r", 1)
	shareGPU(t, m, nobody, "gone", 2)
	gpu.stop()
	_, err := copyOut(t, m, nobody, regions.Range{Region: "r", Size: 4})
	want := refusal{errs.RegionLost, "the worker of GPU 0, which maps shared memory region 'r', cannot be reached: send the request again in a moment"}
	if d := cmp.Diff(want, refusalOf(err)); d != "" {
		t.Error(d)
	}
	if err := m.RegisterCUDA(t.Context(), nobody, regions.Region{Name: "s", Size: 1}, handle(1)); errs.Of(err) != errs.RegionLost {
		t.Errorf("a region is registered with no worker: %v", err)
	}
	gpu.mu.Lock()
	delete(gpu.memory, 2)
	gpu.mu.Unlock()
	gpu.begin()
	for range 2 {
		if got, err := copyOut(t, m, nobody, regions.Range{Region: "r", Size: 4}); got != "0123" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	}
	_, err = copyOut(t, m, nobody, regions.Range{Region: "gone", Size: 4})
	want = refusal{errs.RegionChanged, "shared memory region 'gone' has changed: it cannot be mapped again on GPU 0 (invalid argument); register it again"}
	if d := cmp.Diff(want, refusalOf(err)); d != "" {
		t.Error(d)
	}
}

// Registrations, uses and ends of regions that meet leave nothing behind.
func TestRegionsOfGPUsMeet(t *testing.T) {
	gpu := newMachine(t)
	m := within(t, regions.Options{GPUs: gpu})
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 20 {
				_ = m.RegisterCUDA(t.Context(), nobody, regions.Region{Name: "r", Size: 100}, handle(1)) // another may have the name
				if got, err := copyOut(t, m, nobody, regions.Range{Region: "r", Offset: 3, Size: 2}); err == nil && got != "34" {
					t.Errorf("read %q", got)
				} else if err != nil && errs.Of(err) != errs.RegionNotFound {
					t.Error(err)
				}
				if i%2 == 0 {
					if err := m.Unregister(nobody, regions.CUDA, ""); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	if err := m.Unregister(nobody, regions.CUDA, ""); err != nil {
		t.Error(err)
	}
	if n, bytes := m.Registered(); n != 0 || bytes != 0 || gpu.mappings() != 0 {
		t.Errorf("%d regions of %d bytes, %d mappings", n, bytes, gpu.mappings())
	}
}
