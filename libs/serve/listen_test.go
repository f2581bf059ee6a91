package serve_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/serve"
)

func TestListenTakesPaths(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	e := serve.Endpoint{Address: "unix:" + path}
	first, err := serve.Listen(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := serve.Listen(t.Context(), e); errs.Of(err) != errs.ConfigInvalid {
		t.Errorf("a socket in use: %v", err)
	}
	// As a process does that is killed.
	first.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = first.Close()
	second, err := serve.Listen(t.Context(), e)
	if err != nil {
		t.Fatalf("a socket left behind: %v", err)
	}
	_ = second.Close()
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := serve.Listen(t.Context(), e); errs.Of(err) != errs.ConfigInvalid {
		t.Errorf("a file that is no socket: %v", err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "mine" {
		t.Errorf("the file is gone: %v", err)
	}
}

func TestListenSharesAPort(t *testing.T) {
	first, err := serve.Listen(t.Context(), serve.Endpoint{Address: "127.0.0.1:0", Reuse: true})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, err := serve.Listen(t.Context(), serve.Endpoint{Address: first.Addr().String(), Reuse: true})
	if err != nil {
		t.Fatal(err)
	}
	_ = second.Close()
}
