package regions_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nereid-serving/nereid/services/gateway/internal/regions"
)

// BenchmarkCopies copies an input of 1 MiB out of a region in /dev/shm, and an output into
// it.
func BenchmarkCopies(b *testing.B) {
	const size = 1 << 20
	f, err := os.CreateTemp("/dev/shm", "benchmark")
	if err != nil {
		b.Skip(err)
	}
	defer os.Remove(f.Name()) //nolint:errcheck // a temporary file
	if _, err := f.Write(make([]byte, size)); err != nil {
		b.Fatal(err)
	}
	m := regions.New(regions.Options{})
	defer m.Close()
	if err := m.Register(nobody, regions.Region{Name: "r", Key: filepath.Base(f.Name()), Size: size}); err != nil {
		b.Fatal(err)
	}
	data := make([]byte, size)
	b.SetBytes(2 * size)
	b.ReportAllocs()
	for b.Loop() {
		w, err := m.Open(nobody, regions.Range{Region: "r", Size: size})
		if err != nil {
			b.Fatal(err)
		}
		if err := w.Read(b.Context(), data); err != nil {
			b.Fatal(err)
		}
		if err := w.Write(b.Context(), data); err != nil {
			b.Fatal(err)
		}
		w.Close()
	}
}
