// Package mono is monotonic time in nanoseconds, for schedulers, deadlines and
// measurements.
//
// A [Time] is valid only within the process that read it. Between processes a
// deadline travels as the time left (see [Time.Left]) and is rebuilt on arrival,
// because processes do not share a monotonic clock.
package mono

import "time"

// Time is nanoseconds since an instant fixed for the process. The zero Time
// is "none", for deadlines; a [Clock] never returns it.
type Time int64

// Clock reads the time. Pure code never has one: it receives a Time.
type Clock interface {
	Now() Time
}

// System is the process's own clock. The zero value is not usable; see [New].
type System struct{ base time.Time }

// New starts a clock whose first second is spent, so that no reading is zero.
func New() *System { return &System{base: time.Now().Add(-time.Second)} }

// Now returns the monotonic time.
func (s *System) Now() Time { return Time(time.Since(s.base)) }

// Wall converts a reading of this clock to wall time, for people.
func (s *System) Wall(t Time) time.Time { return s.base.Add(time.Duration(t)) }

// At converts a wall time that carries a monotonic reading, such as a
// context's deadline, to this clock.
func (s *System) At(t time.Time) Time { return Time(t.Sub(s.base)) }

// Add returns t moved by d.
func (t Time) Add(d time.Duration) Time { return t + Time(d) }

// Sub returns t-u.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t - u) }

// Left returns how much time remains at now until the deadline t, and false
// if there is no deadline.
func (t Time) Left(now Time) (time.Duration, bool) {
	if t == 0 {
		return 0, false
	}
	return t.Sub(now), true
}

// Earliest returns the earlier of two deadlines, where zero is none.
func Earliest(a, b Time) Time {
	if a == 0 || (b != 0 && b < a) {
		return b
	}
	return a
}
