package splice_test

import (
	"runtime"
	"testing"

	"google.golang.org/grpc/mem"

	"github.com/nereid-serving/nereid/libs/splice"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// large is longer than what gRPC copies rather than keeps.
const large = 4 << 10

func filled(n int, with byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = with
	}
	return b
}

func TestTensorsAreSplicedInAndReleasedOnce(t *testing.T) {
	back := 0
	data := func(with byte) tensor.Ref {
		return tensor.InBuffer(tensor.Wrap(filled(large, with), false, func(*tensor.Buffer) { back++ }), 0, large)
	}
	message := filled(2*large, '.')
	joined := splice.Join(mem.NewBuffer(&message, mem.NopBufferPool{}), []splice.Tensor{{0, data('a')}, {large, data('b')}, {large, data('c')}, {2 * large, data('d')}})
	want := ""
	for _, with := range "a.bc.d" {
		want += string(filled(large, byte(with)))
	}
	if got := string(joined.Materialize()); got != want {
		t.Error("the joined message does not have the tensors at their offsets")
	}
	if back != 0 {
		t.Errorf("%d tensors were released while they are read", back)
	}
	if joined.Free(); back != 4 {
		t.Errorf("%d tensors were released, want 4", back)
	}
}

// gRPC may drop what it was sending when a connection breaks.
func TestDroppedBuffersAreReleased(*testing.T) {
	back := make(chan struct{})
	message := filled(large, '.')
	b := tensor.Wrap(filled(large, 'a'), false, func(*tensor.Buffer) { close(back) })
	_ = splice.Join(mem.NewBuffer(&message, mem.NopBufferPool{}), []splice.Tensor{{0, tensor.InBuffer(b, 0, large)}})
	for {
		runtime.GC()
		select {
		case <-back:
			return
		default:
		}
	}
}
