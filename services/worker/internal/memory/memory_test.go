package memory_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nereid-serving/nereid/services/worker/internal/memory"
)

func machine(t *testing.T, files map[string]string) memory.Machine {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return memory.Machine{Proc: filepath.Join(root, "proc"), Sys: filepath.Join(root, "sys")}
}

func TestLimitIsTheLeastAround(t *testing.T) {
	const (
		machines = 1000 << 10
		none     = "9223372036854771712\n"
		hybrid   = "4:memory:/docker/x\n1:name=systemd:/docker/x\n0::/docker/x\n"
	)
	for name, tt := range map[string]struct {
		groups string // /proc/self/cgroup
		limits map[string]string
		want   uint64
	}{
		"no groups":                        {want: machines},
		"v2: the container's":              {"0::/\n", map[string]string{"memory.max": "4096\n"}, 4096},
		"v2: one around it":                {"0::/a/b\n", map[string]string{"a/memory.max": "8192\n", "a/b/memory.max": "max\n"}, 8192},
		"v2: more than there is":           {"0::/\n", map[string]string{"memory.max": "99999999\n"}, machines},
		"v2: no limit":                     {"0::/a\n", map[string]string{"a/memory.max": "max\n"}, machines},
		"v1: the container's":              {"4:memory:/x\n", map[string]string{"memory/x/memory.limit_in_bytes": "4096\n"}, 4096},
		"v1: one around it":                {"4:memory:/a/b\n", map[string]string{"memory/a/memory.limit_in_bytes": "8192\n", "memory/a/b/memory.limit_in_bytes": none}, 8192},
		"v1: the host's name of the group": {"4:memory:/docker/x\n", map[string]string{"memory/memory.limit_in_bytes": "4096\n"}, 4096},
		"v1: with other controllers":       {"4:cpu,memory:/a:b\n", map[string]string{"memory/a:b/memory.limit_in_bytes": "4096\n"}, 4096},
		"v1: no limit":                     {"4:memory:/x\n", map[string]string{"memory/x/memory.limit_in_bytes": none, "memory/memory.limit_in_bytes": none}, machines},
		"v1: another controller's":         {"4:cpu:/x\n", map[string]string{"memory/x/memory.limit_in_bytes": "4096\n"}, machines},
		"hybrid: limits of v1":             {hybrid, map[string]string{"memory/docker/x/memory.limit_in_bytes": "4096\n", "unified/docker/x/cgroup.procs": ""}, 4096},
		"hybrid: no limit":                 {hybrid, map[string]string{"memory/docker/x/memory.limit_in_bytes": none}, machines},
	} {
		files := map[string]string{"proc/meminfo": "MemTotal:       1000 kB\nMemFree: 10 kB\n", "proc/self/cgroup": tt.groups}
		for path, text := range tt.limits {
			files[filepath.Join("sys/fs/cgroup", path)] = text
		}
		if got := machine(t, files).Limit(); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
	if got := machine(t, nil).Limit(); got != 0 {
		t.Errorf("nobody tells: %d", got)
	}
	// A machine that tells nothing of itself, and a group without limit.
	files := map[string]string{"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": none}
	if got := machine(t, files).Limit(); got != 0 {
		t.Errorf("no limit and no machine: %d", got)
	}
}

func TestResident(t *testing.T) {
	if got, want := machine(t, map[string]string{"proc/self/statm": "900 7 3 0 0 0 0\n"}).Resident(), 7*uint64(os.Getpagesize()); got != want {
		t.Errorf("%d, want %d", got, want)
	}
	if got := memory.Linux().Resident(); got < 1<<20 {
		t.Errorf("this process has %d bytes", got)
	}
}

func TestGrowthIsSharedByWeight(t *testing.T) {
	var now uint64 = 1000
	m := memory.NewMeter(func() uint64 { return now })
	a := m.Begin(30)
	now = 1100 // a alone
	b := m.Begin(10)
	now = 1500 // both
	c := m.Begin(0)
	now = 1400 // something was freed
	if got := c.End(); got != 0 {
		t.Errorf("a load that took nothing is charged %d", got)
	}
	if got := a.End(); got != 400 {
		t.Errorf("a took %d, want 400", got)
	}
	now = 1450
	if got := b.End(); got != 150 {
		t.Errorf("b took %d, want 150", got)
	}
}
