package obs

import (
	"bytes"
	"strconv"
)

// ticks is processor time since the machine started.
type ticks struct{ busy, total uint64 }

// since returns the share of the time that was used since before, from 0 to 1.
// Counters that went back, as those of waiting for devices do, count as 0.
func (t ticks) since(before ticks) float64 {
	if t.total <= before.total || t.busy <= before.busy {
		return 0
	}
	return min(float64(t.busy-before.busy)/float64(t.total-before.total), 1)
}

// parseStat reads the first line of /proc/stat: the word cpu, then user, nice,
// system, idle, iowait, irq, softirq and steal. What follows, the time of
// guests, is in user and nice already.
func parseStat(text []byte) (t ticks, ok bool) {
	const idle, iowait, last = 3, 4, 7
	line, _, _ := bytes.Cut(text, []byte("\n"))
	fields := bytes.Fields(line)
	if len(fields) <= last+1 || string(fields[0]) != "cpu" {
		return t, false
	}
	for i, field := range fields[1 : last+2] {
		n, err := strconv.ParseUint(string(field), 10, 56) // eight of them have room in 64 bits
		if err != nil {
			return t, false
		}
		t.total += n
		if i != idle && i != iowait {
			t.busy += n
		}
	}
	return t, true
}

// memory is in bytes.
type memory struct{ total, available uint64 }

func (m memory) used() uint64 { return m.total - min(m.available, m.total) }

// parseMeminfo reads the lines MemTotal and MemAvailable of /proc/meminfo,
// which are in KiB.
func parseMeminfo(text []byte) (m memory, ok bool) {
	var found int
	for line := range bytes.Lines(text) {
		name, rest, _ := bytes.Cut(line, []byte(":"))
		var to *uint64
		switch string(name) {
		case "MemTotal":
			to = &m.total
		case "MemAvailable":
			to = &m.available
		default:
			continue
		}
		fields := bytes.Fields(rest)
		if len(fields) != 2 || string(fields[1]) != "kB" {
			return m, false
		}
		n, err := strconv.ParseUint(string(fields[0]), 10, 54)
		if err != nil {
			return m, false
		}
		*to = n << 10
		found++
	}
	return m, found == 2
}
