package serve

import (
	"net"
	"strconv"
	"strings"
)

// Listener is an operator's setting of a listening address.
type Listener struct {
	Enabled bool
	// Address is an IP address or host name, or unix:PATH for a socket in the
	// file system; empty is all interfaces.
	Address string
	// Port 0 takes any free one.
	Port int
	// Reuse lets several processes share the port.
	Reuse bool
}

// Endpoint returns where the listener listens; name says what for, and setting
// changes the address.
func (l Listener) Endpoint(name, setting string) Endpoint {
	e := Endpoint{Address: l.Address, Reuse: l.Reuse, Name: name, Setting: setting}
	if !l.local() {
		e.Address = net.JoinHostPort(l.Address, strconv.Itoa(l.Port))
	}
	return e
}

// local reports whether the address is a path.
func (l Listener) local() bool { return strings.HasPrefix(l.Address, "unix:") }

// Collides reports whether two listeners have the same port.
func (l Listener) Collides(other Listener) bool {
	both := l.Enabled && other.Enabled && !l.local() && !other.local()
	return both && l.Port == other.Port && l.Port != 0
}

// Valid reports whether the port is 0 to 65535.
func (l Listener) Valid() bool { return l.Port >= 0 && l.Port <= 65535 }
