package ports_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/nereid-serving/nereid/test/ports"
)

func TestNoPortIsGivenTwice(t *testing.T) {
	var p ports.Picker
	given := make(map[int]bool)
	for range 2000 {
		port := p.Free(t)
		if given[port] {
			t.Fatalf("%d is given again", port)
		}
		given[port] = true
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p.Free(t)))
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}
