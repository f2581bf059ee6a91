//go:build !linux

package cores

import (
	"errors"
	"fmt"
)

// Node fails.
func Node(n int) (Set, error) { return Set{}, fmt.Errorf("no NUMA node %d on this system", n) }

func (s Set) check() error { return errors.New("threads cannot be kept on cores on this system") }

// Allowed fails.
func Allowed() (Set, error) {
	return Set{}, errors.New("threads cannot be kept on cores on this system")
}

// Run calls f.
func (s Set) Run(f func()) { f() }
