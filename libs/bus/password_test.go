package bus_test

import (
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
)

func TestPasswordOfAnEmbeddedServer(t *testing.T) {
	b, err := bus.Open(t.Context(), bus.Config{Listen: "127.0.0.1:0", Password: "a secret/with:signs"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	with, err := bus.Open(t.Context(), bus.Config{URL: b.Addr()})
	if err != nil {
		t.Fatalf("with the password: %v", err)
	}
	if err := with.Close(); err != nil {
		t.Error(err)
	}
	_, address, _ := strings.Cut(b.Addr(), "@")
	if _, err := bus.Open(t.Context(), bus.Config{URL: "nats://" + address}); errs.Of(err) != errs.StateUnavailable && errs.Of(err) != errs.ConfigInvalid {
		t.Errorf("without it: %v", err)
	}
}
