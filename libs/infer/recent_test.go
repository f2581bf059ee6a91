package infer_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/infer"
)

// span is how many of a gateway's requests a set remembers at most.
const span = 1 << 20

// TestRecentForgetsOnlyWhatItSays holds a set against a map: what was added is
// present or forgotten, what was not, or was removed, is never present, and the
// last numbers are never forgotten.
func TestRecentForgetsOnlyWhatItSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var set infer.Recent
		added, last := map[infer.RequestID]bool{}, map[uint64]uint64{}
		for range rapid.IntRange(1, 60).Draw(t, "requests") {
			id := infer.RequestID{Origin: rapid.Uint64Range(1, 2).Draw(t, "origin"), Number: drawNumber(t)}
			set.Add(id)
			added[id], last[id.Origin] = true, max(last[id.Origin], id.Number)
			switch rapid.IntRange(0, 9).Draw(t, "then") {
			case 0:
				set = copied(&set)
			case 1:
				set.Remove(id)
				delete(added, id)
			}
		}
		for id := range added {
			for _, near := range []infer.RequestID{id, {Origin: id.Origin, Number: id.Number + 1}, {Origin: id.Origin, Number: id.Number - 1}} {
				checkMemory(t, set.Lookup(near), added[near], last[near.Origin] >= near.Number+span-64, near)
			}
		}
	})
}

func drawNumber(t *rapid.T) uint64 {
	near := rapid.Uint64Range(1, 300).Draw(t, "number")
	return near + rapid.SampledFrom([]uint64{0, 5000, span - 300, span, 3 * span}).Draw(t, "from")
}

func copied(set *infer.Recent) (other infer.Recent) {
	for _, b := range set.Started() {
		other.Merge(b)
	}
	return other
}

func checkMemory(t *rapid.T, got infer.Memory, added, old bool, id infer.RequestID) {
	switch {
	case got == infer.Forgotten && !old:
		t.Fatalf("%v is forgotten", id)
	case got == infer.Present && !added:
		t.Fatalf("%v was never added", id)
	case got == infer.Absent && added:
		t.Fatalf("%v was added", id)
	}
}

func TestRecentHasRoomForManyGateways(t *testing.T) {
	var set infer.Recent
	for origin := range uint64(2000) {
		set.Add(infer.RequestID{Origin: origin, Number: 1})
		set.Add(infer.RequestID{Origin: 0, Number: origin}) // the first one lives on
	}
	if n := len(set.Started()); n != 1024 {
		t.Errorf("%d gateways are remembered", n)
	}
	for _, origin := range []uint64{0, 1999} {
		if set.Lookup(infer.RequestID{Origin: origin, Number: 1}) != infer.Present {
			t.Errorf("the request of gateway %d is not remembered", origin)
		}
	}
}

// A set takes memory for what it remembers, in powers of two.
func TestRecentGrowsByNeed(t *testing.T) {
	const words = 64 // requests of a word, and words of the least set
	for _, tt := range []struct {
		name    string
		numbers []uint64
		want    int
	}{
		{"one", []uint64{5}, 64},
		{"the last that has room above", []uint64{0, 64*words - 1}, 64},
		{"the first that has none above", []uint64{0, 64 * words}, 128},
		{"the last that has room below", []uint64{164*words - 1, 100 * words}, 64},
		{"the first that has none below", []uint64{164 * words, 100 * words}, 128},
		{"up to all", []uint64{0, span - 1}, 1 << 14},
		{"and no more above", []uint64{0, 3 * span}, 1 << 14},
		{"nor below", []uint64{2*span - 1, span}, 1 << 14},
		{"too low", []uint64{2 * span, span}, 64},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var set infer.Recent
			for _, n := range tt.numbers {
				set.Add(infer.RequestID{Origin: 1, Number: n})
			}
			if got := set.Words(1); got != tt.want {
				t.Errorf("%d words, want %d", got, tt.want)
			}
			last := slices.Max(tt.numbers)
			for _, n := range tt.numbers {
				want := infer.Present
				if n/words+1<<14 <= last/words {
					want = infer.Forgotten
				}
				if got := set.Lookup(infer.RequestID{Origin: 1, Number: n}); got != want {
					t.Errorf("request %d is %d, want %d", n, got, want)
				}
			}
		})
	}
}

func TestWhatIsForgottenIsMerged(t *testing.T) {
	var set, other infer.Recent
	set.Add(infer.RequestID{Origin: 1, Number: 5})
	set.Merge(infer.Started{Origin: 1, Forgotten: 3})
	set.Merge(infer.Started{Origin: 2, Forgotten: 3})
	for id, want := range map[infer.RequestID]infer.Memory{
		{Origin: 1, Number: 2}: infer.Forgotten, {Origin: 1, Number: 3}: infer.Absent, {Origin: 1, Number: 5}: infer.Present,
		{Origin: 2, Number: 2}: infer.Forgotten, {Origin: 2, Number: 3}: infer.Absent,
	} {
		if got := set.Lookup(id); got != want {
			t.Errorf("%v is %d, want %d", id, got, want)
		}
	}
	for _, b := range set.Started() { // also of a gateway of which nothing but that is known
		other.Merge(b)
	}
	if got := other.Lookup(infer.RequestID{Origin: 2, Number: 2}); got != infer.Forgotten {
		t.Errorf("a copy's request is %d", got)
	}
}

func BenchmarkRecentAdd(b *testing.B) {
	var set infer.Recent
	b.ReportAllocs()
	for n := range uint64(b.N) {
		set.Add(infer.RequestID{Origin: 7, Number: n})
	}
}
