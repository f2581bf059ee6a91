package process_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/process"
	"github.com/nereid-serving/nereid/libs/serve"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for; no test measures it.
const patience = time.Minute

func TestAdminIsAsTheSettingsSay(t *testing.T) {
	s := process.AdminSettings{
		AllowMetrics: config.Switch{On: true}, MetricsPort: 9, MetricsAddress: "127.0.0.1",
		MetricsLabel: []string{"cluster=eu", "pod=a=b"},
	}
	got, err := s.Admin("0.0.0.0")
	if err != nil {
		t.Fatal(err)
	}
	want := process.Admin{
		Listener: serve.Listener{Enabled: true, Address: "127.0.0.1", Port: 9},
		Labels:   map[string]string{"cluster": "eu", "pod": "a=b"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	s.MetricsLabel = []string{"cluster"}
	if _, err := s.Admin(""); errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), "--metrics-label=cluster") {
		t.Errorf("a label without a value: %v", err)
	}
}

// start serves the endpoint until the test's end and returns its address.
func start(t *testing.T, health *process.Health) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	core, logs := observer.New(zap.InfoLevel)
	a := process.Admin{Listener: serve.Listener{Enabled: true, Address: "127.0.0.1"}}
	ended := make(chan error, 1)
	go func() { ended <- a.Serve(ctx, obs.NewMetrics("test", nil), health, zap.New(core)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	waiting, stop := context.WithTimeout(ctx, patience)
	defer stop()
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for {
		for _, entry := range logs.Filter(func(e observer.LoggedEntry) bool { return strings.HasPrefix(e.Message, "Started Metrics Service at ") }).All() {
			return entry.ContextMap()["address"].(string)
		}
		select {
		case <-poll.C:
		case <-waiting.Done():
			t.Fatal("the endpoint does not listen")
		}
	}
}

func get(t *testing.T, address, path string) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + address + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

func TestReadinessSaysWhatIsLacking(t *testing.T) {
	lacking := errors.New("no lease")
	address := start(t, &process.Health{Ready: func() error { return lacking }})
	if status, text := get(t, address, "/v2/health/live"); status != http.StatusOK {
		t.Errorf("live: %d %s", status, text)
	}
	if status, text := get(t, address, "/v2/health/ready"); status != http.StatusServiceUnavailable || !strings.Contains(text, "no lease") {
		t.Errorf("not ready: %d %s", status, text)
	}
	if status, text := get(t, address, "/metrics"); status != http.StatusOK || !strings.Contains(text, `nereid_build_info{version="test"} 1`) {
		t.Errorf("metrics: %d %s", status, text)
	}
	well := start(t, &process.Health{Ready: func() error { return nil }})
	if status, text := get(t, well, "/v2/health/ready"); status != http.StatusOK {
		t.Errorf("ready: %d %s", status, text)
	}
}

func TestWithoutHealthThereAreMetricsAlone(t *testing.T) {
	address := start(t, nil)
	if status, _ := get(t, address, "/v2/health/live"); status != http.StatusNotFound {
		t.Errorf("live: %d", status)
	}
	if status, _ := get(t, address, "/metrics"); status != http.StatusOK {
		t.Errorf("metrics: %d", status)
	}
}
