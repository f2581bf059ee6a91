package shm_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nereid-serving/nereid/libs/shm"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// told is what one process tells another of a tensor.
type told struct {
	Announcement shm.Announcement
	Named        tensor.Ref
	Want         string
}

const (
	asReader = "NEREID_SHM_READ"
	asMaker  = "NEREID_SHM_MAKE"
)

// TestMain also plays the other process of the tests.
func TestMain(m *testing.M) {
	var err error
	switch {
	case os.Getenv(asReader) != "":
		err = readFrom(os.Getenv(asReader))
	case os.Getenv(asMaker) != "":
		err = makeAndWait()
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// readFrom prints the tensor that another process names.
func readFrom(text string) error {
	var t told
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return err
	}
	region, err := shm.Open(t.Announcement)
	if err != nil {
		return err
	}
	local, err := region.Local(t.Named)
	if err != nil {
		return err
	}
	data, err := local.Bytes()
	if err == nil {
		_, err = os.Stdout.Write(data)
	}
	return err
}

// makeAndWait names a tensor and keeps it until standard input ends.
func makeAndWait() error {
	arena, err := shm.New(1 << 30)
	if err != nil {
		return err
	}
	t := told{Announcement: arena.Announcement(), Want: "made elsewhere"}
	b, err := tensor.NewPoolOf(arena, 0).Get(1 << 20)
	if err != nil {
		return err
	}
	copy(b.Bytes()[1<<19:], t.Want)
	t.Named, _ = arena.Name(tensor.InBuffer(b, 1<<19, int64(len(t.Want))))
	if err := json.NewEncoder(os.Stdout).Encode(t); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func newArena(t *testing.T, size int64) (*shm.Arena, *tensor.Pool) {
	t.Helper()
	arena, err := shm.New(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := arena.Close(); err != nil {
			t.Error(err)
		}
	})
	return arena, tensor.NewPoolOf(arena, 1<<20)
}

func open(t *testing.T, a shm.Announcement) *shm.Region {
	t.Helper()
	region, err := shm.Open(a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(region.Release)
	return region
}

// filled is a buffer of the pool that begins with text.
func filled(t *testing.T, p *tensor.Pool, n int, text string) *tensor.Buffer {
	t.Helper()
	b, err := p.Get(n)
	if err != nil {
		t.Fatal(err)
	}
	copy(b.Bytes(), text)
	return b
}

func nameOf(t *testing.T, a *shm.Arena, r tensor.Ref) tensor.Ref {
	t.Helper()
	named, ok := a.Name(r)
	if !ok {
		t.Fatal("a buffer of the arena is no slot of it")
	}
	return named
}

func TestAnotherProcessReadsASlot(t *testing.T) {
	arena, pool := newArena(t, 1<<30)
	b := filled(t, pool, 100<<10, "....shared")
	defer b.Release()
	text, err := json.Marshal(told{Announcement: arena.Announcement(), Named: nameOf(t, arena, tensor.InBuffer(b, 4, 6))})
	if err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), asReader+"="+string(text))
	child.Stderr = os.Stderr
	if out, err := child.Output(); err != nil || string(out) != "shared" {
		t.Errorf("the other process read %q: %v", out, err)
	}
}

// A reader survives the death of the memory's maker, and what was there can
// still be read.
func TestMakerDies(t *testing.T) {
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), asMaker+"=1")
	child.Stderr = os.Stderr
	if _, err := child.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var made told
	if err := json.Unmarshal(line, &made); err != nil {
		t.Fatal(err)
	}
	region := open(t, made.Announcement)
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := child.Wait(); err == nil {
		t.Error("the killed process ended well")
	}
	local, err := region.Local(made.Named)
	if err != nil {
		t.Fatal(err)
	}
	defer local.Release()
	if data, err := local.Bytes(); err != nil || string(data) != made.Want {
		t.Errorf("read %q, %v, want %q", data, err, made.Want)
	}
	// Memory that was never written to can be read as well.
	slot := made.Named
	slot.Offset, slot.Length = 0, 1<<20
	whole, err := region.Local(slot)
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Release()
	if data, err := whole.Bytes(); err != nil || bytes.Count(data, []byte{0}) != len(data)-len(made.Want) {
		t.Errorf("the slot holds more than was written: %v", err)
	}
}

func TestReferenceEndsWithItsSlot(t *testing.T) {
	arena, pool := newArena(t, 1<<30)
	region := open(t, arena.Announcement())
	b := filled(t, pool, 20<<10, "first")
	first := nameOf(t, arena, tensor.InBuffer(b, 0, 5))
	held, err := region.Local(first)
	if err != nil || !region.Current(first) {
		t.Fatalf("a slot in use: %v, current %t", err, region.Current(first))
	}
	b.Release()
	if _, err := region.Local(first); !errors.Is(err, shm.ErrReused) || region.Current(first) {
		t.Errorf("a slot that was given back: %v, current %t", err, region.Current(first))
	}
	again := filled(t, pool, 20<<10, "later")
	defer again.Release()
	later := nameOf(t, arena, tensor.InBuffer(again, 0, 5))
	if later.Slot != first.Slot || later.Generation == first.Generation {
		t.Errorf("reused as %+v after %+v: want the same slot with another generation", later, first)
	}
	// Whoever held a reference meets no fault, but other bytes.
	if data, err := held.Bytes(); err != nil || string(data) != "later" {
		t.Errorf("read %q, %v", data, err)
	}
	held.Release()
}

func TestOpenRefusesWhatIsNotAsAnnounced(t *testing.T) {
	arena, _ := newArena(t, 1<<30)
	good := arena.Announcement()
	plain, err := os.Create(t.TempDir() + "/plain")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	fd, err := unix.MemfdCreate("unsealed", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	unsealed := os.NewFile(uintptr(fd), "unsealed")
	defer unsealed.Close()
	for _, f := range []*os.File{plain, unsealed} {
		if err := f.Truncate(good.Size); err != nil {
			t.Fatal(err)
		}
	}
	self := func(f *os.File) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()) }
	for name, change := range map[string]func(*shm.Announcement){
		"another size":    func(a *shm.Announcement) { a.Size += 4096 },
		"no size":         func(a *shm.Announcement) { a.Size = 0 },
		"an odd size":     func(a *shm.Announcement) { a.Size-- },
		"another mark":    func(a *shm.Announcement) { a.Mark[0]++ },
		"a short mark":    func(a *shm.Announcement) { a.Mark = a.Mark[:8] },
		"any path":        func(a *shm.Announcement) { a.Path = plain.Name() },
		"a path behind":   func(a *shm.Announcement) { a.Path = fmt.Sprintf("/proc/%d/fd/../fd/%d", os.Getpid(), plain.Fd()) },
		"a plain file":    func(a *shm.Announcement) { a.Path = self(plain) },
		"unsealed memory": func(a *shm.Announcement) { a.Path = self(unsealed) },
		"nothing there":   func(a *shm.Announcement) { a.Path = "/proc/1/fd/987654" },
	} {
		t.Run(name, func(t *testing.T) {
			a := good
			a.Mark = append([]byte(nil), good.Mark...)
			change(&a)
			if region, err := shm.Open(a); err == nil {
				region.Release()
				t.Error("it was opened")
			}
		})
	}
}

func TestSizeIsForGood(t *testing.T) {
	arena, _ := newArena(t, 1<<30)
	a := arena.Announcement()
	f, err := os.OpenFile(a.Path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(4096); !errors.Is(err, unix.EPERM) {
		t.Errorf("shrinking the memory: %v", err)
	}
}

func TestSlotsOutsideOfTheRegionAreRefused(t *testing.T) {
	arena, pool := newArena(t, 1<<20)
	region := open(t, arena.Announcement())
	b := filled(t, pool, 64<<10, "")
	defer b.Release()
	good := nameOf(t, arena, tensor.InBuffer(b, 0, 64<<10))
	for name, change := range map[string]func(*tensor.Ref){
		"before the slots":  func(r *tensor.Ref) { r.Slot = 0 },
		"within a page":     func(r *tensor.Ref) { r.Slot += 8 },
		"behind the end":    func(r *tensor.Ref) { r.Slot += 1 << 20 },
		"far behind":        func(r *tensor.Ref) { r.Slot = math.MaxUint64 - 4095 },
		"too long":          func(r *tensor.Ref) { r.Length = 2 << 20 },
		"longest":           func(r *tensor.Ref) { r.Offset, r.Length = 1, math.MaxInt64 },
		"of negative size":  func(r *tensor.Ref) { r.Length = -1 },
		"before its slot":   func(r *tensor.Ref) { r.Offset = -4096 },
		"beyond its region": func(r *tensor.Ref) { r.Offset = math.MaxInt64 },
	} {
		t.Run(name, func(t *testing.T) {
			r := good
			change(&r)
			if local, err := region.Local(r); err == nil {
				local.Release()
				t.Error("it was read")
			}
		})
	}
}

func TestFullArenaHandsOutOtherMemory(t *testing.T) {
	arena, pool := newArena(t, 64<<10)
	first := filled(t, pool, 64<<10, "")
	second := filled(t, pool, 64<<10, "not shared")
	if _, ok := arena.Name(tensor.InBuffer(second, 0, 10)); ok {
		t.Error("memory outside the arena is a slot of it")
	}
	if _, ok := arena.Name(tensor.InHeap([]byte("heap"))); ok {
		t.Error("memory of the heap is a slot")
	}
	first.Release()
	second.Release()
	pool.Trim()
	third := filled(t, pool, 64<<10, "")
	defer third.Release()
	nameOf(t, arena, tensor.InBuffer(third, 0, 10))
}

func TestMemoryIsGivenBack(t *testing.T) {
	arena, pool := newArena(t, 1<<30)
	used := func() int64 {
		var stat unix.Stat_t
		if err := unix.Stat(arena.Announcement().Path, &stat); err != nil {
			t.Fatal(err)
		}
		return stat.Blocks * 512
	}
	before := used()
	b := filled(t, pool, 8<<20, "")
	clear(b.Bytes())
	if used() < before+8<<20 {
		t.Errorf("%d bytes used with a buffer of 8 MiB", used())
	}
	b.Release() // more than the pool keeps
	if grown := used() - before; grown > 64<<10 {
		t.Errorf("%d bytes stay after the buffer is given back", grown)
	}
}

// Whatever comes and goes, no two slots overlap, and in the end all space is
// one piece again.
func TestSpaceIsNotLost(t *testing.T) {
	const size = 8 << 20
	arena, err := shm.New(size)
	if err != nil {
		t.Fatal(err)
	}
	defer arena.Close()
	random := rand.New(rand.NewPCG(1, 2))
	var held [][]byte
	for range 20_000 {
		if len(held) > 0 && random.IntN(2) == 0 {
			i := random.IntN(len(held))
			mem := held[i]
			for _, b := range mem[1:16] {
				if b != mem[0] {
					t.Fatal("a slot was written to by another's owner")
				}
			}
			arena.Retire(mem)
			arena.Unmap(mem)
			held[i] = held[len(held)-1]
			held = held[:len(held)-1]
			continue
		}
		mem, err := arena.Map(16 + random.IntN(300<<10))
		if err != nil {
			t.Fatal(err)
		}
		mark := byte(random.Uint32())
		for i := range 16 {
			mem[i] = mark
		}
		held = append(held, mem)
	}
	for _, mem := range held {
		arena.Retire(mem)
		arena.Unmap(mem)
	}
	whole, err := arena.Map(size)
	if err != nil {
		t.Fatal(err)
	}
	defer arena.Unmap(whole)
	if _, ok := arena.Name(tensor.InBuffer(tensor.Wrap(whole, true, nil), 0, size)); !ok {
		t.Error("the arena has no piece of its whole size any more")
	}
}

// Memory that could shrink would be a fault for who reads it.
func TestMemoryThatCouldShrinkIsNotOpened(t *testing.T) {
	arena, err := shm.New(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = arena.Close() }()
	a := arena.Announcement()
	for seals, opens := range map[int]bool{0: false, unix.F_SEAL_GROW: false, unix.F_SEAL_SHRINK: true} {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = unix.Pwrite(fd, a.Mark, 0); err == nil {
			err = unix.Ftruncate(fd, a.Size)
		}
		if err == nil {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		}
		if err != nil {
			t.Fatal(err)
		}
		region, err := shm.Open(shm.Announcement{Path: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), Size: a.Size, Mark: a.Mark})
		if (err == nil) != opens {
			t.Errorf("memory with the seals %#x: %v", seals, err)
		}
		if err == nil {
			region.Release()
		}
		_ = unix.Close(fd)
	}
}
