package rpc

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/mem"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc/wire"
)

func TestBuffersHaveTheLengthAskedFor(t *testing.T) {
	var p buffers
	for _, n := range []int{0, 1, 1025, 2048, 2049, 600_000, 1 << largestBits, 1<<largestBits + 1} {
		for range 2 { // fresh, and perhaps what came back
			b := p.Get(n)
			if len(*b) != n {
				t.Fatalf("Get(%d) has %d bytes", n, len(*b))
			}
			*b = (*b)[:n/2] // a reply may turn out shorter
			p.Put(b)
		}
	}
}

// frames is a buffer pool that counts what was not put back.
type frames struct{ out int }

func (c *frames) Get(n int) *[]byte {
	c.out++
	b := make([]byte, n)
	return &b
}

func (c *frames) Put(*[]byte) { c.out-- }

// A message that is decoded goes back to where gRPC got its memory from.
func TestDecodedMessagesAreGivenBack(t *testing.T) {
	for name, message := range map[string][]byte{"plain": bytes.Repeat([]byte("\x0a\x0ax123456789"), 1000), "corrupt gzip": append([]byte{gzipMark}, make([]byte, 4096)...)} {
		pool := new(frames)
		b := pool.Get(len(message))
		copy(*b, message)
		data := mem.BufferSlice{mem.NewBuffer(b, pool)}
		_ = newCodec(tensor.NewPool(0), nil, 1<<20).Unmarshal(data, new(wire.Request))
		data.Free()
		if pool.out != 0 {
			t.Errorf("%s: %d buffers are out", name, pool.out)
		}
	}
}
