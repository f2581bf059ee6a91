//go:build linux

package cores_test

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nereid-serving/nereid/services/worker/internal/cores"
)

// mine is a core that this process may use.
func mine(t *testing.T) int {
	t.Helper()
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(os.Getpid(), &allowed); err != nil {
		t.Fatal(err)
	}
	for n := range 1024 {
		if allowed.IsSet(n) {
			return n
		}
	}
	t.Fatal("no core")
	return 0
}

func TestLeastUsedCores(t *testing.T) {
	all, err := cores.Allowed()
	if err != nil {
		t.Fatal(err)
	}
	list := slices.Collect(all.All())
	use := map[int]int{list[0]: 2, list[len(list)-1]: 1}
	if got := all.Least(len(list)+1, use); !got.Equal(all) {
		t.Errorf("of %v there are %v", all, got)
	}
	for n := range list {
		got := all.Least(n, use)
		if got.Len() != n || slices.Contains(slices.Collect(got.All()), list[0]) {
			t.Errorf("%d of %v are %v, where the first is used most", n, all, got)
		}
	}
	if one := all.Least(1, map[int]int{list[0]: 1}); len(list) > 1 && one.String() != strconv.Itoa(list[1]) {
		t.Errorf("one of %v is %v, where the first is used", all, one)
	}
}

func TestLists(t *testing.T) {
	for text, want := range map[string]string{
		"":        `"" is no list of cores`,
		"a":       `"a" is no list of cores`,
		"3-1":     `"3-1" is no list of cores`,
		"-1":      `"-1" is no list of cores`,
		"0-99999": `"0-99999" is no list of cores`,
		"1023":    "core 1023 is not among those of this process",
	} {
		if _, err := cores.Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
	if _, err := cores.Node(999); err == nil {
		t.Error("node 999 is accepted")
	}
}

func TestRunStaysOnTheCoresAndComesBack(t *testing.T) {
	n := mine(t)
	s, err := cores.Parse(strconv.Itoa(n))
	if err != nil {
		t.Fatal(err)
	}
	var inside unix.CPUSet
	s.Run(func() {
		if err := unix.SchedGetaffinity(0, &inside); err != nil {
			t.Error(err)
		}
	})
	if inside.Count() != 1 || !inside.IsSet(n) {
		t.Errorf("%d cores inside, want core %d alone", inside.Count(), n)
	}
	if s.Empty() || s.String() != strconv.Itoa(n) || !s.Equal(s) || s.Equal(cores.Set{}) {
		t.Errorf("the set is %s", s)
	}
	ran := false
	cores.Set{}.Run(func() { ran = true })
	if !ran {
		t.Error("the empty set does not run")
	}
}
