package load_test

import (
	"testing"
	"time"

	"github.com/nereid-serving/nereid/test/load"
)

// steady is a request each 10 ms from the disturbance on, of which those of
// some times fail.
func steady(start time.Time, length time.Duration, fails func(time.Duration) bool) []load.Line {
	var lines []load.Line
	for at := time.Duration(0); at < length; at += 10 * time.Millisecond {
		outcome := load.OK
		if fails(at) {
			outcome = load.Failed
		}
		lines = append(lines, load.Line{Sent: start.Add(at).UnixNano(), Responses: []load.Response{{Outcome: outcome}}})
	}
	return lines
}

func TestRecovery(t *testing.T) {
	start := time.Unix(1000, 0)
	for name, tt := range map[string]struct {
		fails func(time.Duration) bool
		want  time.Duration
		ok    bool
	}{
		"never below":       {func(time.Duration) bool { return false }, 0, true},
		"a few fail":        {func(at time.Duration) bool { return at%time.Second == 0 }, 0, true},
		"back after two s":  {func(at time.Duration) bool { return at < 2*time.Second }, 1950 * time.Millisecond, true},
		"down and up again": {func(at time.Duration) bool { return at/time.Second == 0 || at/time.Second == 3 }, 3950 * time.Millisecond, true},
		"never back":        {func(at time.Duration) bool { return at >= time.Second }, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			lines := steady(start, 10*time.Second, tt.fails)
			got, ok := load.Recovery(lines, start, start.Add(10*time.Second))
			if ok != tt.ok || ok && got != tt.want {
				t.Errorf("Recovery = %v, %v, want %v, %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}
