//go:build cgo

package onnxruntime

import (
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
)

func TestInputsThatNeedNoCopy(t *testing.T) {
	tests := []struct {
		name     string
		requests int
		mapped   bool
		offset   int64
		length   int64
		want     bool
	}{
		{"one request, mapped and aligned", 1, true, 8, 800, true},
		{"several requests", 2, true, 8, 800, false},
		{"on the Go heap", 1, false, 8, 800, false},
		{"not aligned for its element", 1, true, 4, 800, false},
		{"empty", 1, true, 8, 0, false},
	}
	pool := tensor.NewPool(0)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, err := pool.Get(tensor.MappedThreshold)
			if err != nil {
				t.Fatal(err)
			}
			defer b.Release()
			data := tensor.InBuffer(tensor.Wrap(b.Bytes(), tt.mapped, nil), tt.offset, tt.length)
			in := instance{group: make([]int, tt.requests)}
			if got := in.inPlace(&infer.Tensor{Datatype: tensor.Int64, Data: data}); got != tt.want {
				t.Errorf("inPlace is %t, want %t", got, tt.want)
			}
		})
	}
}
