package port_test

import (
	"net"
	"strconv"
	"testing"

	"github.com/nereid-serving/nereid/libs/testkit/port"
)

func TestPortsCanBeListenedOn(t *testing.T) {
	first := port.Free(t, 3)
	for i := range 3 {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(first+i)))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
}
