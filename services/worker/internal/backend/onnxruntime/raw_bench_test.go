//go:build cgo

package onnxruntime

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/cores"
)

// BenchmarkRaw runs the session of BenchmarkExecute in a loop over memory set
// up once: what is left when batches are taken away.
func BenchmarkRaw(b *testing.B) {
	for _, size := range []int64{16, 5000} {
		for _, rows := range []int64{1, 8} {
			b.Run(fmt.Sprintf("add_sub int32[%d]/rows=%d", size, rows), func(b *testing.B) {
				c := rawCall(b, rows, size)
				b.ReportAllocs()
				for b.Loop() {
					if err := c.run(); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(int64(b.N)*rows), "µs/request")
			})
		}
	}
}

// rawCall sets up a call of an add_sub session.
func rawCall(b *testing.B, rows, size int64) *call {
	b.Helper()
	pool := tensor.NewPool(64 << 20)
	library, err := Open(onnxmodel.Library(b), Options{Pool: pool})
	if err != nil {
		b.Fatal(err)
	}
	file := filepath.Join(b.TempDir(), "model.onnx")
	onnxmodel.AddSub(tensor.Int32, "batch", int(size)).WriteFile(b, file)
	s, err := library.newSession(b.Context(), file, backend.Version{Config: &modelconfig.Config{}}, cores.Set{})
	if err != nil {
		b.Fatal(err)
	}
	c, err := newCall(library.engine, s.native, 2, 2)
	if err != nil {
		b.Fatal(err)
	}
	memory := arena{pool: pool}
	shape := tensor.Shape{rows, size}
	n, _ := shape.ByteSize(tensor.Int32)
	if err := memory.reserve(4 * aligned(n)); err != nil {
		b.Fatal(err)
	}
	c.begin()
	for _, name := range []string{onnxmodel.Input0, onnxmodel.Input1} {
		c.addInput(newName(name), elementOf(tensor.Int32), shape, memory.take(n))
	}
	for _, name := range []string{onnxmodel.Output0, onnxmodel.Output1} {
		c.addOutput(newName(name), elementOf(tensor.Int32), shape, memory.take(n))
	}
	b.Cleanup(func() {
		c.close()
		memory.free()
		_ = s.close()
		_ = library.Close()
	})
	return c
}
