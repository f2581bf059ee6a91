package history_test

import (
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/bus/history"
)

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestHigherFirstRevisionIsALoss(t *testing.T) {
	h := history.New()
	if h.Observed("models") {
		t.Error("a bucket was observed before any answer")
	}
	before := h.Lost("models")
	for _, step := range []struct {
		name        string
		first, last uint64
		newest      history.Incarnation
		lost        bool
	}{
		{"the first answer", 100, 100, 100, false},
		{"the same incarnation", 100, 150, 100, false},
		{"a later incarnation", 900, 899, 900, true},
		{"the same again", 900, 901, 900, false},
		{"a late answer", 100, 160, 900, false},
	} {
		newest, lost := h.Observe("models", step.first, step.last)
		if newest.Incarnation != step.newest || lost != step.lost {
			t.Errorf("%s: incarnation %d, lost %t; want %d, %t", step.name, newest.Incarnation, lost, step.newest, step.lost)
		}
		if closed(newest.Lost) {
			t.Errorf("%s: the newest incarnation is lost", step.name)
		}
		if step.first == 900 != closed(before) && step.name != "a late answer" {
			t.Errorf("%s: the channel of the loss is closed: %t", step.name, closed(before))
		}
	}
	if closed(h.Lost("models")) {
		t.Error("the channel of the next loss is closed")
	}
	if !h.Observed("models") || h.Observed("pools") {
		t.Error("an answer about one bucket counts for another, or not for its own")
	}
}

func TestFirstRevisionIsAboveAllBefore(t *testing.T) {
	h := history.New()
	now := time.UnixMicro(1_000_000_000)
	if got := h.FirstRevision("models", now); got != 1_000_000_000 {
		t.Errorf("the first making begins with %d", got)
	}
	h.Observe("models", 1_000_000_000, 1_000_000_007)
	for _, tt := range []struct {
		name string
		now  time.Time
		want uint64
	}{
		{"after a while", now.Add(time.Minute), 1_060_000_000},
		{"by a clock that is behind", now.Add(-time.Minute), 1_001_000_007},
	} {
		if got := h.FirstRevision("models", tt.now); got != tt.want {
			t.Errorf("%s a bucket begins with %d, want %d", tt.name, got, tt.want)
		}
	}
	h.Observe("models", 5, 5) // a late answer
	if got := h.FirstRevision("models", now); got != 1_001_000_007 {
		t.Errorf("after a late answer a bucket begins with %d", got)
	}
}

func TestLossIsReportedOnceInAWhile(t *testing.T) {
	h := history.New()
	now := time.Unix(1000, 0)
	for _, tt := range []struct {
		after time.Duration
		want  bool
	}{{0, true}, {time.Second, false}, {time.Minute - 1, false}, {time.Minute, true}, {time.Minute + 1, false}} {
		if got := h.ShouldReport(now.Add(tt.after)); got != tt.want {
			t.Errorf("after %v a loss is reported: %t", tt.after, got)
		}
	}
}
