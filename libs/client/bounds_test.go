package client_test

import (
	"crypto/tls"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/client"
)

// A server that accepts connections and says nothing holds no call up for longer
// than the connect timeout: the calls end although their contexts do not.
func TestASilentServerIsGivenUp(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // the kernel accepts
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	o := client.Options{TLS: &tls.Config{MinVersion: tls.VersionTLS12}, ConnectTimeout: time.Millisecond}
	g, err := client.GRPC(l.Addr().String(), o)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]client.Client{"http": client.HTTP(l.Addr().String(), o), "grpc": g} {
		if _, err := c.Index(t.Context()); err == nil {
			t.Errorf("over %s a call succeeded", name)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestResponsesAreBounded(t *testing.T) {
	server := httptest.NewServer(&respondent{json: `[{"name":"` + strings.Repeat("m", 100) + `"}]`})
	defer server.Close()
	for limit, fits := range map[int64]bool{0: true, 113: true, 112: false, 10: false} {
		c := client.HTTP(server.URL, client.Options{MaxResponseBytes: limit})
		models, err := c.Index(t.Context())
		if (err == nil) != fits || (fits && len(models) != 1) || (!fits && !strings.Contains(err.Error(), "has more than")) {
			t.Errorf("%d bytes: %v", limit, err)
		}
		_ = c.Close()
	}
}
