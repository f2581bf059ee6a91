package cache

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// FuzzDecode reads values whose checksum is right, whatever the rest is.
func FuzzDecode(f *testing.F) {
	e := newEntry(&infer.Response{
		Outputs:    []infer.Tensor{{Name: "y", Datatype: tensor.FP32, Shape: tensor.Shape{1}, Data: tensor.InHeap([]byte{1, 2, 3, 4})}},
		Parameters: []infer.Parameter{{Key: "b", Value: true}, {Key: "i", Value: int64(-1)}, {Key: "f", Value: 0.5}, {Key: "t", Value: "x"}},
	})
	b := encode(e)
	f.Add(b[len(mark) : len(b)-4])
	f.Fuzz(func(t *testing.T, body []byte) {
		value := append([]byte(mark), body...)
		read := decode(binary.LittleEndian.AppendUint32(value, crc(value)))
		if read == nil {
			return
		}
		once := encode(read)
		if again := decode(once); again == nil || !bytes.Equal(encode(again), once) {
			t.Errorf("% x is read as %+v, and written as % x", body, read, once)
		}
	})
}
