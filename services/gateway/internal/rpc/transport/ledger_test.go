package transport

import (
	"testing"

	"pgregory.net/rapid"
)

func TestAFrameCostsWhatGRPCTakesForIt(t *testing.T) {
	for n, want := range map[int]int64{0: 0, 1: 1 + 128, 1024: 1024 + 128, 1025: 2048 + 128, 8193: 16384 + 128, 16384: 16384 + 128} {
		if got := frameCost(n); got != want {
			t.Errorf("%d bytes cost %d, want %d", n, got, want)
		}
	}
}

// A ledger never holds less than the frames that are not taken cost, and nothing when
// all are.
func TestALedgerHoldsWhatIsNotTaken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l ledger
		var frames []segment // not taken; of the first some bytes may be
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			if len(frames) == 0 || rapid.Bool().Draw(t, "add") {
				n := rapid.SampledFrom([]int{1, 5, 600, 1025, 16384}).Draw(t, "bytes")
				f := segment{int64(n), frameCost(n)}
				l.add(f.bytes, f.cost)
				frames = append(frames, f)
				continue
			}
			var all int64
			for _, f := range frames {
				all += f.bytes
			}
			n := rapid.Int64Range(1, all).Draw(t, "take")
			l.take(n)
			for n > 0 {
				taken := min(n, frames[0].bytes)
				n -= taken
				if frames[0].bytes -= taken; frames[0].bytes == 0 {
					frames = frames[1:]
				}
			}
			var least, bytes int64
			for _, f := range frames {
				least, bytes = least+f.cost, bytes+f.bytes
			}
			if l.bytes != bytes || l.cost < least {
				t.Fatalf("%d bytes at %d, want %d at %d or more", l.bytes, l.cost, bytes, least)
			}
			if most := least + max(segmentCost, l.cost/segmentShare); l.cost > most || bytes == 0 && l.cost != 0 {
				t.Fatalf("%d bytes cost %d, want at most %d", bytes, l.cost, most)
			}
		}
	})
}

func TestALedgerStaysSmall(t *testing.T) {
	var l ledger
	for range 1 << 16 { // 1 GiB
		l.add(16<<10, frameCost(16<<10))
	}
	if n := len(l.segments); n > 200 {
		t.Errorf("%d segments", n)
	}
	if got := l.take(1 << 30); got != (1<<16)*frameCost(16<<10) || l.cost != 0 || l.bytes != 0 {
		t.Errorf("%d taken, %d and %d stay", got, l.cost, l.bytes)
	}
}

func TestPaddingIsNoMessage(t *testing.T) {
	var l ledger
	l.add(100, frameCost(100))
	l.unpad(60)
	if got := l.take(40); got != frameCost(100) || l.bytes != 0 {
		t.Errorf("%d taken, %d bytes stay", got, l.bytes)
	}
}
