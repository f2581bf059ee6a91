// Package cores names sets of processor cores and pins threads to them. On
// systems other than Linux every set is refused.
package cores

import (
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
)

// Set is a set of cores; the empty one stands for all of them and pins
// nothing. It is immutable.
type Set struct {
	list []int
}

// most bounds the numbers of cores: what the kernel's smallest mask holds.
const most = 1024

// Parse reads a list such as "0-3" or "0,2-3", and refuses cores that this
// process may not use.
func Parse(text string) (Set, error) {
	var s Set
	for part := range strings.SplitSeq(strings.TrimSpace(text), ",") {
		first, last, ranged := strings.Cut(part, "-")
		a, err := strconv.ParseUint(first, 10, 16)
		b := a
		if err == nil && ranged {
			b, err = strconv.ParseUint(last, 10, 16)
		}
		if err != nil || a > b || b >= most {
			return Set{}, fmt.Errorf("%q is no list of cores such as 0-3", text)
		}
		for n := a; n <= b; n++ {
			s.list = append(s.list, int(n))
		}
	}
	return s, s.check()
}

// Empty reports whether the set pins nothing.
func (s Set) Empty() bool { return len(s.list) == 0 }

// Len is how many cores the set holds; 0 if it pins nothing.
func (s Set) Len() int { return len(s.list) }

// Equal reports whether two sets hold the same cores in the same order.
func (s Set) Equal(other Set) bool { return s.String() == other.String() }

// Least returns the n cores of the set that use counts the fewest times; all where
// there are no more.
func (s Set) Least(n int, use map[int]int) Set {
	list := slices.Clone(s.list)
	slices.SortStableFunc(list, func(a, b int) int { return use[a] - use[b] })
	list = list[:min(n, len(list))]
	slices.Sort(list)
	return Set{list: list}
}

// All goes through the cores of the set.
func (s Set) All() iter.Seq[int] { return slices.Values(s.list) }

// String lists the cores: 0,1,2.
func (s Set) String() string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(s.list), " ", ","), "[]")
}
