// Package ports picks ports for programs that must be told one: since they
// cannot say which one the system gave them, or must find the same in their
// next incarnation.
package ports

import (
	"sync"
	"testing"

	"github.com/nereid-serving/nereid/libs/testkit/port"
)

// tries is how many ports are drawn before one counts as missing.
const tries = 1000

// Picker gives no port twice. The zero value is ready for use, and safe for
// concurrent use.
type Picker struct {
	mu    sync.Mutex
	given map[int]bool // guarded by mu
}

// Free is a port of the loopback address that nobody listens on.
func (p *Picker) Free(t testing.TB) int {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.given == nil {
		p.given = make(map[int]bool)
	}
	for range tries {
		if drawn := port.Free(t, 1); !p.given[drawn] {
			p.given[drawn] = true
			return drawn
		}
	}
	t.Fatal("no port is free")
	return 0
}
