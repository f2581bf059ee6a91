package bus

import (
	"testing"
	"time"
)

func TestBackoffDoublesUpToItsBound(t *testing.T) {
	for attempts, want := range map[int]time.Duration{
		-1: 50 * time.Millisecond, 0: 50 * time.Millisecond, 1: 100 * time.Millisecond,
		4: 800 * time.Millisecond, 5: maxBackoff, 1000: maxBackoff,
	} {
		least, most := want, time.Duration(0)
		for range 1000 {
			d := backoff(attempts)
			least, most = min(least, d), max(most, d)
		}
		if least <= want/2 || most > want || most-least < want/4 {
			t.Errorf("after %d attempts: from %v to %v, want more than %v, %v at most, at random", attempts, least, most, want/2, want)
		}
	}
}

func TestRetriesWaitLonger(t *testing.T) {
	var failed retries
	var last time.Duration
	for range 5 { // each bound is the half of the next
		d := failed.wait()
		if d <= last || d > 50*time.Millisecond<<(failed-1) {
			t.Errorf("wait %d is %v after %v", failed, d, last)
		}
		last = d
	}
}

func TestPersistentDirectoriesAreSynced(t *testing.T) {
	for dir, want := range map[string]bool{"": false, "state": true} {
		opts, err := embeddedOptions(Config{Dir: dir}, "store")
		if err != nil || opts.SyncAlways != want {
			t.Errorf("directory %q: %+v, %v; want %v", dir, opts, err, want)
		}
	}
}
