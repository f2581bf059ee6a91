package classify_test

import (
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/classify"
)

// FuzzApply asks for any number of classes of an output of any bytes.
func FuzzApply(f *testing.F) {
	f.Add([]byte("\x00\x00\x80\x3f\x00\x00\xc0\x7f\x00\x00\x80\xff"), uint8(tensor.FP32), uint64(2), true)
	f.Add([]byte("\x01\xff\x7f\x80"), uint8(tensor.Int8), uint64(1)<<63, false)
	f.Add([]byte{}, uint8(tensor.Uint64), uint64(1), true)
	f.Add([]byte("\x01\x00\x00\x00a"), uint8(tensor.Bytes), uint64(1), false)
	f.Fuzz(func(t *testing.T, data []byte, datatype uint8, k uint64, batches bool) {
		d := tensor.Datatype(datatype)
		if !d.Valid() || d.Size() == 0 || k == 0 {
			return
		}
		n := int64(len(data) / d.Size())
		shape := tensor.Shape{n}
		if batches {
			shape = tensor.Shape{1, n}
		}
		p := response(d, shape, data[:int(n)*d.Size()])
		if err := classify.Apply(model(d, batches), []classify.Output{{Name: "OUT", Classes: k}}, p); err != nil {
			if !strings.Contains(err.Error(), "unsupported type") {
				t.Errorf("%d classes of %d %s: %v", k, n, d, err)
			}
			return
		}
		if got := elements(t, &p.Outputs[0]); uint64(len(got)) != min(k, uint64(n)) {
			t.Errorf("%d of %d classes of %d", len(got), k, n)
		}
	})
}
