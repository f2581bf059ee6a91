package load

import "time"

// window is over how long the goodput is taken, and step how exactly the time
// of a recovery is told.
const (
	window = time.Second
	step   = 50 * time.Millisecond
	enough = 0.95
)

// Recovery is how long after a disturbance the goodput of a second is back to
// 95 % of what was sent, for good until the end of what is looked at. It is 0 if
// it was never below, and ok is false if it does not come back.
func Recovery(lines []Line, disturbed, until time.Time) (after time.Duration, ok bool) {
	last := time.Duration(-1) // the latest window that was bad
	for from := disturbed; !from.Add(window).After(until); from = from.Add(step) {
		if goodput(lines, from, from.Add(window)) < enough {
			last = from.Sub(disturbed)
		}
	}
	if last < 0 {
		return 0, true
	}
	after = last + step
	return after, !disturbed.Add(after + window).After(until)
}

// goodput is the part of the requests sent in a time that were answered well; 1
// if none were sent.
func goodput(lines []Line, from, to time.Time) float64 {
	sent, good := 0, 0
	for _, l := range lines {
		if at := time.Unix(0, l.Sent); at.Before(from) || !at.Before(to) {
			continue
		}
		sent++
		if len(l.Responses) == 1 && l.Responses[0].Outcome == OK {
			good++
		}
	}
	if sent == 0 {
		return 1
	}
	return float64(good) / float64(sent)
}
