package region_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/plane/region"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gpu is a device whose memory is the process's. Handles name memory by their first byte.
type gpu struct {
	mu     sync.Mutex
	memory map[byte][]byte
	mapped int
	// unmapped is told of each mapping that ends.
	unmapped *sync.Cond
	broken   error         // of copies; nil if they work
	held     chan struct{} // copies wait for its end; nil for none
}

func (g *gpu) open(device int32, raw [region.HandleBytes]byte) (region.Memory, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	bytes, ok := g.memory[raw[0]]
	if !ok || device != 3 {
		return nil, fmt.Errorf("GPU %d has no memory %d", device, raw[0])
	}
	g.mapped++
	return &mapping{g, bytes}, nil
}

// awaitUnmapped returns once nothing is mapped.
func (g *gpu) awaitUnmapped() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.mapped > 0 {
		g.unmapped.Wait()
	}
}

func (g *gpu) mappings() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mapped
}

type mapping struct {
	gpu   *gpu
	bytes []byte
}

func (m *mapping) Bytes() uint64 { return uint64(len(m.bytes)) }

func (m *mapping) Read(data []byte, offset uint64) error {
	return m.copy(func() { copy(data, m.bytes[offset:offset+uint64(len(data))]) })
}

func (m *mapping) Write(data []byte, offset uint64) error {
	return m.copy(func() { copy(m.bytes[offset:offset+uint64(len(data))], data) })
}

func (m *mapping) copy(do func()) error {
	m.gpu.mu.Lock()
	held := m.gpu.held
	m.gpu.mu.Unlock()
	if held != nil {
		<-held
	}
	m.gpu.mu.Lock()
	defer m.gpu.mu.Unlock()
	if m.gpu.broken == nil {
		do()
	}
	return m.gpu.broken
}

func (m *mapping) Close() {
	m.gpu.mu.Lock()
	defer m.gpu.mu.Unlock()
	m.gpu.mapped--
	m.gpu.unmapped.Broadcast()
}

// serve is a worker of the GPU, until stop.
func serve(t *testing.T, g *gpu) (at link.Peer, stop func()) {
	t.Helper()
	g.unmapped = sync.NewCond(&g.mu)
	path := filepath.Join(t.TempDir(), "s")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(link.ServerOptions(nil, nil)...)
	region.Register(s, g.open)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	stop = sync.OnceFunc(func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return link.Peer{Address: "unix:" + path}, stop
}

func handle(memory byte, size uint64) region.Handle {
	return region.Handle{Device: 3, Raw: [region.HandleBytes]byte{memory}, Size: size}
}

func open(t *testing.T, at link.Peer, h region.Handle) *region.Region {
	t.Helper()
	r, err := region.Open(t.Context(), at, h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(context.Background()) })
	return r
}

func TestBytesAreCopiedBothWays(t *testing.T) {
	const size = 5<<20 + 3 // several parts
	g := &gpu{memory: map[byte][]byte{1: make([]byte, size+10), 2: make([]byte, 10)}}
	at, _ := serve(t, g)
	r, other := open(t, at, handle(1, size)), open(t, at, handle(2, 10))
	want := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size-7]
	if err := r.Write(t.Context(), want, 7); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(g.memory[1][7:size], want) || !bytes.Equal(g.memory[1][size:], make([]byte, 10)) {
		t.Error("other bytes were written")
	}
	got := make([]byte, size-7)
	if err := r.Read(t.Context(), got, 7); err != nil || !bytes.Equal(got, want) {
		t.Errorf("other bytes were read, %v", err)
	}
	if err := other.Read(t.Context(), got[:10], 0); err != nil || !bytes.Equal(got[:10], make([]byte, 10)) {
		t.Errorf("another region has %v, %v", got[:10], err)
	}
}

func TestARegionIsMappedWhileItIsShared(t *testing.T) {
	g := &gpu{memory: map[byte][]byte{1: make([]byte, 10)}}
	at, stop := serve(t, g)
	first, second := open(t, at, handle(1, 10)), open(t, at, handle(1, 10))
	if n := g.mappings(); n != 2 {
		t.Errorf("%d mappings, want 2", n)
	}
	first.Close(t.Context())
	if n := g.mappings(); n != 1 {
		t.Errorf("%d mappings after the end of one region, want 1", n)
	}
	if err := first.Read(t.Context(), make([]byte, 1), 0); errs.Of(err) != errs.PeerUnreachable {
		t.Errorf("a region that is closed: %v", err)
	}
	stop() // as a worker that ends
	if err := second.Read(t.Context(), make([]byte, 1), 0); errs.Of(err) != errs.PeerUnreachable {
		t.Errorf("a worker that is gone: %v", err)
	}
	if _, err := region.Open(t.Context(), at, handle(1, 10)); errs.Of(err) != errs.PeerUnreachable {
		t.Errorf("a worker that is gone maps: %v", err)
	}
	g.awaitUnmapped()
}

func TestHandlesThatLieAreRefused(t *testing.T) {
	g := &gpu{memory: map[byte][]byte{1: make([]byte, 10)}}
	at, _ := serve(t, g)
	wrong := handle(1, 10)
	wrong.Device = 2
	for name, tt := range map[string]struct {
		handle region.Handle
		want   string
	}{
		"memory that is not there": {handle(9, 10), "GPU 3 has no memory 9"},
		"another device":           {wrong, "GPU 2 has no memory 1"},
		"more than there is":       {handle(1, 11), "the memory has 10 bytes"},
		"as much as there can be":  {handle(1, 1<<64-1), "the memory has 10 bytes"},
	} {
		_, err := region.Open(t.Context(), at, tt.handle)
		var refused *region.RefusedError
		if !errors.As(err, &refused) || refused.Text != tt.want {
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
	}
	if _, err := region.Open(t.Context(), at, handle(1, 0)); errs.Of(err) != errs.PeerMalformed {
		t.Errorf("nothing is shared: %v", err)
	}
	g.awaitUnmapped()
}

// A copy that CUDA refuses fails alone; one that is out of bounds is the gateway's mistake, and
// touches nothing.
func TestCopiesThatFail(t *testing.T) {
	g := &gpu{memory: map[byte][]byte{1: make([]byte, 20)}}
	at, _ := serve(t, g)
	r := open(t, at, handle(1, 10))
	g.mu.Lock()
	g.broken = errors.New("an illegal memory access was encountered")
	g.mu.Unlock()
	var refused *region.RefusedError
	if err := r.Write(t.Context(), []byte("x"), 0); !errors.As(err, &refused) || refused.Text != g.broken.Error() {
		t.Errorf("%v, want what CUDA says", err)
	}
	g.mu.Lock()
	g.broken = nil
	g.mu.Unlock()
	if err := r.Write(t.Context(), []byte("x"), 9); err != nil {
		t.Errorf("the copy after it: %v", err)
	}
	for _, offset := range []uint64{10, 11, 1<<64 - 1} {
		r := open(t, at, handle(1, 10))
		if err := r.Write(t.Context(), []byte("y"), offset); err == nil {
			t.Errorf("a byte at %d of 10 was written", offset)
		}
	}
	if want := append(append(make([]byte, 9), 'x'), make([]byte, 10)...); !bytes.Equal(g.memory[1], want) {
		t.Errorf("the memory has %q", g.memory[1])
	}
}

// A device that hangs holds up those that use the region, as long as they care to wait.
func TestCopiesEndWithTheirContext(t *testing.T) {
	g := &gpu{memory: map[byte][]byte{1: make([]byte, 10), 2: make([]byte, 10)}, held: make(chan struct{})}
	at, _ := serve(t, g)
	r, other := open(t, at, handle(1, 10)), open(t, at, handle(2, 10))
	ctx, cancel := context.WithCancelCause(t.Context())
	why, failed := errors.New("the client is gone"), make(chan error, 2)
	for range 2 { // one copies, one waits for its turn
		go func() { failed <- r.Read(ctx, make([]byte, 1), 0) }()
	}
	cancel(why)
	for range 2 {
		if err := <-failed; !errors.Is(err, why) && errs.Of(err) != errs.PeerUnreachable {
			t.Errorf("%v, want %v", err, why)
		}
	}
	g.mu.Lock()
	close(g.held)
	g.held = nil
	g.mu.Unlock()
	if err := other.Read(t.Context(), make([]byte, 1), 0); err != nil {
		t.Errorf("another region: %v", err)
	}
}
