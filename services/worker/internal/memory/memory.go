// Package memory measures how much memory a worker has for its models, and how
// much each of them uses.
package memory

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// Machine is where a machine tells of its memory: the roots of its file systems
// /proc and /sys.
type Machine struct{ Proc, Sys string }

// Linux is where every Linux machine does.
func Linux() Machine { return Machine{Proc: "/proc", Sys: "/sys"} }

func (m Machine) total() uint64 {
	data, err := os.ReadFile(filepath.Join(m.Proc, "meminfo"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == "MemTotal:" {
			n, _ := strconv.ParseUint(fields[1], 10, 64)
			return n << 10
		}
	}
	return 0
}

// Resident is how much memory the process has now, in bytes; 0 if nobody tells.
func (m Machine) Resident() uint64 {
	data, err := os.ReadFile(filepath.Join(m.Proc, "self/statm"))
	fields := bytes.Fields(data)
	if err != nil || len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseUint(string(fields[1]), 10, 64)
	if err != nil {
		return 0
	}
	return pages * uint64(os.Getpagesize())
}

// Meter shares the growth of the process's memory among what is loaded
// meanwhile. It is safe for concurrent use.
type Meter struct {
	resident func() uint64

	mu      sync.Mutex
	last    uint64         // guarded by mu
	running map[*Load]bool // guarded by mu
}

// NewMeter makes a meter of what resident says the process has.
func NewMeter(resident func() uint64) *Meter {
	return &Meter{resident: resident, running: make(map[*Load]bool)}
}

// Load is something that is being loaded.
type Load struct {
	meter  *Meter
	weight float64
	bytes  float64 // guarded by the meter's lock
}

// Begin begins to measure a load. While several are measured they share the
// growth by their weights, of which files' sizes are a good one.
func (m *Meter) Begin(weight int64) *Load {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.share()
	l := &Load{meter: m, weight: float64(max(weight, 1))}
	m.running[l] = true
	return l
}

// End ends the measurement and returns how much memory the load has taken, in
// bytes. What was freed meanwhile elsewhere may hide some of it.
func (l *Load) End() uint64 {
	l.meter.mu.Lock()
	defer l.meter.mu.Unlock()
	l.meter.share()
	delete(l.meter.running, l)
	return uint64(l.bytes)
}

// share gives what the process has more than the last time to what is loaded.
// The lock is held.
func (m *Meter) share() {
	now := m.resident()
	grown := float64(now) - float64(m.last)
	m.last = now
	var sum float64
	for l := range m.running {
		sum += l.weight
	}
	for l := range m.running {
		l.bytes += max(grown, 0) * l.weight / sum
	}
}
