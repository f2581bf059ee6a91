package stub

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// memory makes a file of memory as a stub does, with such seals.
func memory(t *testing.T, size int64, seals int) (fd int) {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if seals != 0 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
	}
	return fd
}

// isOpen reports whether a descriptor is open.
func isOpen(fd int) bool {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil
}

// Memory that could shrink would end the worker with a fault when it reads there.
func TestMemoryOfStubsIsMappedWhereItCannotShrink(t *testing.T) {
	const size = 1 << 12
	file := func(t *testing.T) int {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	pipe := func(t *testing.T) int {
		var ends [2]int
		if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(ends[1]) })
		return ends[0]
	}
	sealed := func(size int64) func(*testing.T) int {
		return func(t *testing.T) int { return memory(t, size, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL) }
	}
	for _, tt := range []struct {
		name string
		open func(*testing.T) int
		size int64
		why  string // empty: it is mapped
	}{
		{"sealed", sealed(size), size, ""},
		{"sealed against shrinking alone", func(t *testing.T) int { return memory(t, size, unix.F_SEAL_SHRINK) }, size, ""},
		{"without seals", func(t *testing.T) int { return memory(t, size, 0) }, size, "it could shrink"},
		{"sealed against growing alone", func(t *testing.T) int { return memory(t, size, unix.F_SEAL_GROW) }, size, "it could shrink"},
		{"larger than it is", sealed(size), size + 1, "not 4097"},
		{"smaller than it is", sealed(size), size - 1, "not 4095"},
		{"of nothing", sealed(0), 0, "not 0"},
		{"of less than nothing", sealed(size), -size, "not -4096"},
		{"a file of a disk", file, size, "shrink"},
		{"a pipe", pipe, size, "no memory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var in incoming
			fd := tt.open(t)
			err := in.add([]File{{Number: 7, Size: tt.size}}, []int{fd})
			if tt.why == "" && err != nil || tt.why != "" && (err == nil || !strings.Contains(err.Error(), tt.why) && tt.name != "a file of a disk") {
				t.Errorf("%v, want %q", err, tt.why)
			}
			if isOpen(fd) {
				t.Error("the descriptor stays open")
			}
			if _, err := in.take(7, 0, 1, func() {}); (err == nil) != (tt.why == "") {
				t.Errorf("what was refused can be read: %v", err)
			}
		})
	}
}

func TestFilesOfStubsThatDoNotFitTheirMessage(t *testing.T) {
	const seals = unix.F_SEAL_SHRINK
	var in incoming
	one, other := memory(t, 8, seals), memory(t, 8, seals)
	if err := in.add([]File{{Number: 1, Size: 8}}, []int{one, other}); err == nil || isOpen(one) || isOpen(other) {
		t.Errorf("two files for one name: %v", err)
	}
	if err := in.add([]File{{Number: 1, Size: 8}}, nil); err == nil {
		t.Error("a name without a file")
	}
	if err := in.add([]File{{Number: 1, Size: 8}}, []int{memory(t, 8, seals)}); err != nil {
		t.Fatal(err)
	}
	if err := in.add([]File{{Number: 1, Size: 8}}, []int{memory(t, 8, seals)}); err == nil {
		t.Error("a second file of one number")
	}
	for _, place := range [][3]int64{{2, 0, 1}, {1, 9, 0}, {1, 0, 9}, {1, 8, 1}, {1, 1, 1<<63 - 1}} {
		if _, err := in.take(uint64(place[0]), place[1], place[2], func() {}); err == nil { //nolint:gosec // small
			t.Errorf("file %d has %d bytes at %d", place[0], place[2], place[1])
		}
	}
	ref, err := in.take(1, 4, 4, func() {})
	if err != nil {
		t.Fatal(err)
	}
	ref.Release()
	if slots := in.freedSlots(nil); len(slots) != 1 || slots[0] != (Slot{1, 4}) {
		t.Errorf("the stub has again %v", slots)
	}
}
