package arch

import (
	"os"
	"testing"
)

func TestTheRepositoryKeepsToItsLayout(t *testing.T) {
	found, err := Check(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	for _, violation := range found {
		t.Error(violation)
	}
}
