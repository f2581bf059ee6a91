package memory

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Limit is how much memory this process may use, in bytes: that of its
// container, of one around it, or of the machine, whichever is least; 0 if
// nobody tells.
func (m Machine) Limit() uint64 {
	limit := m.total()
	for _, h := range m.hierarchies() {
		for group := path.Clean(h.group); ; group = path.Dir(group) {
			data, err := os.ReadFile(filepath.Join(m.Sys, "fs/cgroup", h.root, group, h.file))
			n, bad := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
			if err == nil && bad == nil && (limit == 0 || n < limit) && n < unlimited {
				limit = n // else it is "max", or there is none at the root
			}
			if group == "/" || group == "." {
				break
			}
		}
	}
	return limit
}

// unlimited is less than what the first version of control groups has where
// there is no limit, which is the largest number of whole pages, and more than
// any machine has.
const unlimited = 1 << 62

// hierarchy is a tree of control groups that bounds memory.
type hierarchy struct {
	root  string // its directory within that of all control groups
	group string // the process's group in it
	file  string // has a group's limit
}

// hierarchies are the trees of both versions of control groups that the process
// has a group in. Where both are mounted one of them has the limits. In a
// container the group may be named as the host knows it while only the
// container's own part is mounted, as the root: that one is always among the
// parents.
func (m Machine) hierarchies() (list []hierarchy) {
	data, err := os.ReadFile(filepath.Join(m.Proc, "self/cgroup"))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(data)) {
		// number:controllers:path, of which the path may have colons
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(fields) < 3:
		case fields[0] == "0" && fields[1] == "":
			list = append(list, hierarchy{group: fields[2], file: "memory.max"})
		case slices.Contains(strings.Split(fields[1], ","), "memory"):
			list = append(list, hierarchy{root: "memory", group: fields[2], file: "memory.limit_in_bytes"})
		}
	}
	return list
}
