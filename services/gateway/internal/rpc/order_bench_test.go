package rpc

import "testing"

// What a call without a sequence pays for the order of those with one.
func BenchmarkOrder(b *testing.B) {
	var o order
	b.ReportAllocs()
	for b.Loop() {
		t := &ticket{Context: b.Context()}
		o.open(t)
		t.leave() // with its message
		t.leave() // when it is submitted
		t.leave() // when it has ended
	}
}
