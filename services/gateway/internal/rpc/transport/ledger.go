package transport

import "math/bits"

// The memory that gRPC uses for one DATA frame in addition to its payload, in bytes: the entry in the list of
// its stream, which grows by doubling, and the buffer's own header.
const frameOverhead = 128

// Buffers of more than pooledFrom bytes have a power of two as their size, since they come from the server's
// pool.
const pooledFrom = 1 << 10

// frameCost returns the memory in bytes that gRPC uses for a DATA frame with n bytes.
func frameCost(n int) int64 {
	switch {
	case n == 0:
		return 0
	case n > pooledFrom:
		n = 1 << bits.Len(uint(n-1))
	}
	return int64(n) + frameOverhead
}

// ledger lists what one stream has received and its handler has not, in the order of arrival. Small frames cost
// many times their payload, so a delivered message releases what its own frames cost.
type ledger struct {
	bytes, cost int64
	segments    []segment // the oldest first
	first       [2]segment
}

// segment is a run of frames. All of its cost counts until its last byte is delivered.
type segment struct{ bytes, cost int64 }

// A segment grows up to segmentCost, or to 1/segmentShare of a large ledger, so that a ledger stays small
// however much it counts.
const (
	segmentCost  = 64 << 10
	segmentShare = 16
)

// add counts a frame.
func (l *ledger) add(bytes, cost int64) {
	l.bytes += bytes
	l.cost += cost
	if n := len(l.segments); n > 0 {
		if last := &l.segments[n-1]; last.cost+cost <= max(segmentCost, l.cost/segmentShare) {
			last.bytes += bytes
			last.cost += cost
			return
		}
	}
	if l.segments == nil {
		l.segments = l.first[:0]
	}
	l.segments = append(l.segments, segment{bytes, cost})
}

// take removes n bytes, or all if there are fewer, and returns their cost.
func (l *ledger) take(n int64) (cost int64) {
	for n > 0 && len(l.segments) > 0 {
		s := &l.segments[0]
		if n < s.bytes {
			s.bytes -= n
			l.bytes -= n
			break
		}
		n -= s.bytes
		l.bytes -= s.bytes
		cost += s.cost
		if l.segments = l.segments[1:]; len(l.segments) == 0 {
			l.segments = l.first[:0]
		}
	}
	l.cost -= cost
	return cost
}

// unpad removes n bytes of padding from the last frame. Its memory stays charged.
func (l *ledger) unpad(n int64) {
	last := &l.segments[len(l.segments)-1]
	n = min(n, last.bytes)
	last.bytes -= n
	l.bytes -= n
}
