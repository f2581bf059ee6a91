//go:build cgo && linux

package onnxruntime_test

import (
	"context"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// resident is the process's resident memory in bytes, after the Go heap has
// given back what it can.
func resident(t testing.TB) int64 {
	t.Helper()
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// Each round loads 8 MiB of weights, runs the model on two instances and
// unloads it. Loads that keep more than a four-hundredth of that fail, over and over:
// what a thread or the heap takes once is no leak.
func TestLoadsAndUnloadsLeaveMemoryFlat(t *testing.T) {
	const warm, rounds, tries, side = 40, 200, 4, 1024
	b, _ := open(t)
	v := version(t, onnxmodel.Weights(2, side), config(8,
		ios(io("INPUT0", tensor.FP32, side)), ios(io("OUTPUT0", tensor.FP32, side))))
	input, want := make([]float32, 4*side), make([]float32, 4*side)
	for i := range input {
		input[i], want[i] = float32(i), float32(i)/4
	}
	round := func() {
		m, err := b.Load(context.Background(), v)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			in, err := m.NewInstance(context.Background(), backend.InstanceSpec{Name: "m_0_0", Kind: modelconfig.KindCPU})
			if err != nil {
				t.Fatal(err)
			}
			got := run(t, in, request(4, value{"INPUT0", tensor.FP32, tensor.Shape{4, side}, pack(input)}))
			if d := cmp.Diff(pack(want), outputs(t, got.response(0))[0].Data); d != "" {
				t.Fatal("wrong answer")
			}
			if err := in.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for range warm {
		round()
	}
	const perLoad = 20 << 10
	before, grown := resident(t), int64(0)
	for range tries {
		for range rounds {
			round()
		}
		now := resident(t)
		if grown = now - before; grown <= rounds*perLoad {
			return
		}
		before = now
	}
	t.Errorf("resident memory grew to %d MiB, by %d KiB in the last %d loads", before>>20, grown>>10, rounds)
}
