// Package port reserves ports for listeners that a test opens later or reopens. A
// port that the system chose might be in use again by then, because the system
// assigns the same range to every connection and listener of the machine. This
// package uses ports outside that range.
package port

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"testing"
)

const (
	// lowest is beyond the ports that programs have by custom.
	lowest = 10_000
	// usual is the first port that the system chooses, unless it says otherwise.
	usual = 32_768
)

// Free returns the first of count ports in a row on which nobody listens.
func Free(t testing.TB, count int) int {
	t.Helper()
	for range 1000 {
		first := lowest + rand.IntN(chosen()-lowest-count)
		if free(t, first, count) {
			return first
		}
	}
	t.Fatalf("no %d free ports in a row", count)
	return 0
}

// Address is a free port of this host.
func Address(t testing.TB) string {
	t.Helper()
	return address(Free(t, 1))
}

func address(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// chosen is the first port that the system chooses.
func chosen() int {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	var first, last int
	if err == nil {
		_, err = fmt.Sscan(string(text), &first, &last)
	}
	if err != nil || first < 2*lowest {
		return usual
	}
	return first
}

func free(t testing.TB, first, count int) bool {
	t.Helper()
	var config net.ListenConfig
	for i := range count {
		l, err := config.Listen(t.Context(), "tcp", address(first+i))
		if err != nil {
			return false
		}
		_ = l.Close()
	}
	return true
}
