package obs_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/obs"
)

// proc writes a proc file system.
func proc(t testing.TB, dir, stat, meminfo string) {
	t.Helper()
	for name, text := range map[string]string{"stat": stat, "meminfo": meminfo} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

const (
	// 100 ticks, 30 of them idle or waiting.
	someStat = "cpu  40 10 10 20 10 5 4 1 40 10\ncpu0 1 2 3\nintr 5\n"
	// 100 more, of which 75 were idle or waiting; guests are in user.
	moreStat    = "cpu  50 10 20 80 25 5 8 2 50 10\ncpu0 1 2 3\n"
	someMeminfo = "MemTotal:        1000 kB\nMemFree:          100 kB\nMemAvailable:     400 kB\n"
	moreMeminfo = "MemTotal:        1000 kB\nMemFree:          100 kB\nMemAvailable:     300 kB\n"
)

func TestHostIsReadAtEachInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		proc(t, dir, someStat, someMeminfo)
		h, err := obs.NewHost(dir)
		if err != nil {
			t.Fatal(err)
		}
		shows := func(when, utilization, used string) {
			t.Helper()
			want := `# HELP nv_cpu_memory_total_bytes CPU total memory (RAM), in bytes
# TYPE nv_cpu_memory_total_bytes gauge
nv_cpu_memory_total_bytes 1.024e+06
# HELP nv_cpu_memory_used_bytes CPU used memory (RAM), in bytes
# TYPE nv_cpu_memory_used_bytes gauge
nv_cpu_memory_used_bytes ` + used + `
# HELP nv_cpu_utilization CPU utilization rate [0.0 - 1.0]
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization ` + utilization + "\n"
			if err := testutil.CollectAndCompare(h, strings.NewReader(want)); err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
		shows("at first", "0", "614400")
		proc(t, dir, moreStat, moreMeminfo)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- h.Run(ctx, time.Minute) }()
		<-time.After(time.Minute - 1)
		shows("before the interval", "0", "614400")
		<-time.After(2)
		shows("after the interval", "0.25", "716800")
		<-time.After(time.Minute)
		shows("when nothing has moved", "0", "716800")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestHostNeedsLinuxsFiles(t *testing.T) {
	tests := map[string]struct{ stat, meminfo string }{
		"no processor":    {"intr 1\n", someMeminfo},
		"too few fields":  {"cpu 1 2 3 4 5 6 7\n", someMeminfo},
		"no number":       {"cpu 1 2 3 4 5 6 7 x\n", someMeminfo},
		"a huge number":   {"cpu 1 2 3 4 5 6 7 18446744073709551615\n", someMeminfo},
		"no memory":       {someStat, "MemFree: 1 kB\n"},
		"another unit":    {someStat, "MemTotal: 1 MB\nMemAvailable: 1 MB\n"},
		"no availability": {someStat, "MemTotal: 1 kB\n"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			proc(t, dir, tt.stat, tt.meminfo)
			if _, err := obs.NewHost(dir); errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), "--allow-cpu-metrics=false") {
				t.Errorf("%v", err)
			}
		})
	}
	if _, err := obs.NewHost(t.TempDir()); errs.Of(err) != errs.ConfigInvalid {
		t.Errorf("without files: %v", err)
	}
}

func FuzzHost(f *testing.F) {
	f.Add(someStat, someMeminfo)
	f.Fuzz(func(t *testing.T, stat, meminfo string) {
		dir := t.TempDir()
		proc(t, dir, stat, meminfo)
		h, err := obs.NewHost(dir)
		if err != nil {
			return
		}
		if n := testutil.CollectAndCount(h); n != 3 {
			t.Errorf("%d series", n)
		}
	})
}
