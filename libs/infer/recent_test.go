package infer_test

import (
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
				checkMemory(t, set.Look(near), added[near], last[near.Origin] >= near.Number+span-64, near)
			}
		}
	})
}

func drawNumber(t *rapid.T) uint64 {
	near := rapid.Uint64Range(1, 300).Draw(t, "number")
	return near + rapid.SampledFrom([]uint64{0, 5000, span - 300, span, 3 * span}).Draw(t, "from")
}

func copied(set *infer.Recent) (other infer.Recent) {
	for _, b := range set.Begun() {
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
	if n := len(set.Begun()); n != 1024 {
		t.Errorf("%d gateways are remembered", n)
	}
	for _, origin := range []uint64{0, 1999} {
		if set.Look(infer.RequestID{Origin: origin, Number: 1}) != infer.Present {
			t.Errorf("the request of gateway %d is not remembered", origin)
		}
	}
}

func BenchmarkRecentAdd(b *testing.B) {
	var set infer.Recent
	b.ReportAllocs()
	for n := range uint64(b.N) {
		set.Add(infer.RequestID{Origin: 7, Number: n})
	}
}
