//go:build cgo

package onnxruntime_test

import (
	"fmt"
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/invariant"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// repeated is a backend.Batch that can be executed again and again: it keeps
// its requests and drops its responses.
type repeated struct {
	requests []*infer.Request
	failed   error
}

func (b *repeated) Requests() []*infer.Request                        { return b.requests }
func (b *repeated) BatchSize() int64                                  { return int64(len(b.requests)) }
func (b *repeated) Canceled(int) bool                                 { return false }
func (b *repeated) OnCancel(func())                                   {}
func (b *repeated) OnCancelEach(func(int))                            {}
func (b *repeated) GiveBack(err error)                                { panic(err) }
func (b *repeated) InputDone()                                        {}
func (b *repeated) Room(int) <-chan struct{}                          { return nil }
func (b *repeated) InferDone()                                        {}
func (b *repeated) Executed()                                         {}
func (*repeated) Call(int, *infer.Call, func(*infer.Response)) func() { return nil }
func (*repeated) Free()                                               {}
func (b *repeated) Done()                                             {}
func (*repeated) Again(int) bool                                      { return false }

func (b *repeated) Respond(_ int, r *infer.Response) {
	if r.Err != nil {
		b.failed = r.Err
	}
	r.Release()
}

// The only allocations of a batch are its responses, their outputs and their
// shapes: one each, however many requests there are.
func TestAllocationsPerBatch(t *testing.T) {
	if invariant.Enabled {
		t.Skip("allocations differ when assertions are compiled in")
	}
	b, _ := open(t)
	for _, n := range []int{1, 8} {
		in := addSub(t, b, 8, 16)
		batch := &repeated{}
		for range n {
			batch.requests = append(batch.requests, addSubRequest(1, 16, 1, 2))
		}
		in.Execute(batch)
		if got := testing.AllocsPerRun(200, func() { in.Execute(batch) }); got > 3.1 {
			t.Errorf("batch of %d: %.1f allocations, want 3", n, got)
		}
		if batch.failed != nil {
			t.Fatal(batch.failed)
		}
	}
}

// BenchmarkExecute measures gather, run and scatter for batches of
// single-row requests; µs/request is the figure to compare.
func BenchmarkExecute(b *testing.B) {
	for _, size := range []int64{16, 5000} {
		for _, n := range []int{1, 8} {
			b.Run(fmt.Sprintf("add_sub int32[%d]/requests=%d", size, n), func(b *testing.B) {
				ort, pool := open(b)
				in := addSub(b, ort, 8, size)
				batch := &repeated{}
				for range n {
					r := addSubRequest(1, size, 1, 2)
					if size*4 >= tensor.MappedThreshold {
						for i, v := range r.Inputs {
							data, _ := v.Data.Bytes()
							r.Inputs[i] = mapped(b, pool, v.Name, v.Datatype, v.Shape, string(data))
						}
					}
					batch.requests = append(batch.requests, r)
				}
				b.ReportAllocs()
				for b.Loop() {
					in.Execute(batch)
				}
				if batch.failed != nil {
					b.Fatal(batch.failed)
				}
				b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*n), "µs/request")
				for _, r := range batch.requests {
					r.Release()
				}
			})
		}
	}
}
