package rpc

import "testing"

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
