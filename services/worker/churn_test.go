package worker_test

import (
	"os"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// usage is what a worker that leaked would have more and more of.
type usage struct {
	Goroutines, Files int
	Tensors           int64
}

func (h *harness) usage() usage {
	h.t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		h.t.Skip("open files cannot be counted here: ", err)
	}
	return usage{runtime.NumGoroutine(), len(files), h.pool.Stats().InUse}
}

// loadAndUnload brings a generation of the model up with two instances, runs
// a request on each, and takes it away again.
func (h *harness) loadAndUnload(generation uint64) {
	h.t.Helper()
	h.model("a", generation, func(v *nereidv1.ModelValue) { v.Config.ModelWarmup = warmups() })
	if v := h.applied(h.assign(assigned("a", generation, 2))); len(v.GetVersions()) != 1 || len(v.GetVersions()[0].GetInstances()) != 2 {
		h.t.Fatalf("generation %d: %v", generation, lines(v))
	}
	for id := range h.scheduler.granted() {
		data, err := h.pool.Get(4)
		if err != nil {
			h.t.Fatal(err)
		}
		request := &infer.Request{
			Work:      infer.Work{Request: infer.RequestID{Origin: 1, Number: generation}, Epoch: 1},
			BatchSize: 1,
			Inputs:    []infer.Tensor{{Name: "x", Datatype: tensor.Int8, Shape: tensor.Shape{1, 4}, Data: tensor.InBuffer(data, 0, 4)}},
		}
		h.scheduler.executor.Execute(&infer.Batch{ID: infer.BatchID{Epoch: 1, Number: generation*10 + uint64(id.Slot%2)}, Instance: id, Requests: []*infer.Request{request}})
		r := <-h.responses
		if r.Err != nil {
			h.t.Fatal(r.Err)
		}
		r.Release()
	}
	if v := h.applied(h.assign()); len(v.GetVersions()) != 0 {
		h.t.Fatalf("after generation %d: %v", generation, lines(v))
	}
}

// 200 loads and unloads leave goroutines, open files and tensor memory as
// they were after the first few.
func TestLoadsAndUnloadsLeaveNothingBehind(t *testing.T) {
	h := newHarness(t)
	const settled, times = 20, 200
	for n := range uint64(settled) {
		h.loadAndUnload(n + 1)
	}
	before := h.usage()
	for n := range uint64(times - settled) {
		h.loadAndUnload(settled + n + 1)
	}
	// The store's and the runtime's own come and go; what leaks grows with each
	// load, and does not end by waiting.
	const slack = (times - settled) / 4
	leaks := func(u usage) bool {
		return u.Goroutines > before.Goroutines+slack || u.Files > before.Files+slack || u.Tensors != 0
	}
	after := h.usage()
	for n := 0; n < 1000 && leaks(after); n++ {
		runtime.GC() // lets what ends come to its end
		after = h.usage()
	}
	if leaks(after) {
		t.Errorf("%d loads and unloads (-before +after):\n%s", times-settled, cmp.Diff(before, after))
	}
	if n := len(h.scheduler.granted()); n != 0 {
		t.Errorf("%d instances are left", n)
	}
}
