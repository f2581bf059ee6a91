package embedded

import (
	"bytes"
	"context"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// Without ExitOnError a server whose repository cannot be read stays, responds with
// its metadata and is not live; with it the server ends.
func TestAnUnreadableRepository(t *testing.T) {
	for _, exit := range []bool{true, false} {
		c := Default()
		c.Registry.Repositories, c.ExitOnError.On = []string{filepath.Join(t.TempDir(), "missing")}, exit
		c.Gateway.HTTPAddress, c.Gateway.HTTPPort = "127.0.0.1", 0
		c.Gateway.AllowGRPC.On, c.Admin.AllowMetrics.On = false, false
		core, logs := observer.New(zap.InfoLevel)
		server, err := New(c, zap.New(core), &bytes.Buffer{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- server.Run(ctx) }()
		if exit {
			if err := <-ended; err == nil {
				t.Error("the server ended without an error")
			}
			cancel()
			continue
		}
		u := &unled{t: t}
		u.eventually("the server to listen without its registry", func() bool {
			for _, e := range logs.FilterMessage("listening").All() {
				u.http, _ = e.ContextMap()["http"].(string)
			}
			return u.http != "" && logs.FilterMessageSnippet("no models are served").Len() == 1
		})
		for path, want := range map[string]int{
			"/v2": http.StatusOK, "/v2/health/live": http.StatusBadRequest, "/v2/health/ready": http.StatusBadRequest, "/v2/models/m/ready": http.StatusServiceUnavailable,
		} {
			if got := u.get(path); got != want {
				t.Errorf("%s is answered with %d, want %d", path, got, want)
			}
		}
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("serve: %v", err)
			}
		case <-time.After(patience):
			t.Error("the server does not stop")
		}
	}
}

// get returns the status of a request.
func (u *unled) get(path string) int {
	u.t.Helper()
	request, err := http.NewRequestWithContext(u.t.Context(), http.MethodGet, "http://"+u.http+path, http.NoBody)
	if err != nil {
		u.t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	response, err := transport.RoundTrip(request)
	if err != nil {
		u.t.Fatal(err)
	}
	defer response.Body.Close()
	return response.StatusCode
}
