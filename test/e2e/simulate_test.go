package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// TestAServersLogIsSimulated has a server log what its scheduler is asked and
// decides, and simulates that.
func TestAServersLogIsSimulated(t *testing.T) {
	inOneProcess(t)
	const clients, each = 4, 10
	path := filepath.Join(t.TempDir(), "run.log")
	s := start(t, repository(t, map[string]string{"m/config.pbtxt": echo(2000), "m/1/.keep": ""}), "--decision-log="+path)
	var asking sync.WaitGroup
	for range clients {
		asking.Go(func() {
			for range each {
				body := `{"parameters":{"timeout":60000000},"inputs":[{"name":"x","datatype":"INT32","shape":[1,1],"data":[7]}]}`
				if status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/m/infer", body); status != http.StatusOK {
					t.Errorf("%d %s", status, text)
				}
			}
		})
	}
	asking.Wait()
	s.signal(syscall.SIGTERM)
	if status := s.exit(); status != 0 {
		t.Fatalf("exit status %d", status)
	}
	stdout, stderr, status := nereid(t, "simulate", "--trace="+path, "--json")
	if status != 0 {
		t.Fatalf("exit status %d: %s", status, stderr)
	}
	var printed struct {
		Runs []struct {
			Name     string
			Arrivals int
			InTime   int `json:"in_time"`
			Batches  int
			Mean     int64            `json:"mean_ns"`
			False    *json.RawMessage `json:"false_refusals"`
		}
	}
	if err := json.Unmarshal([]byte(stdout), &printed); err != nil || len(printed.Runs) != 3 {
		t.Fatalf("%v:\n%s", err, stdout)
	}
	for i, name := range []string{"recorded", "nereid", "fifo"} {
		r := printed.Runs[i]
		if r.Name != name || r.Arrivals != clients*each || r.InTime != r.Arrivals || r.Batches != r.Arrivals || r.Mean < 2_000_000 || (r.False == nil) != (name == "fifo") {
			t.Errorf("%s: %+v, want %d answered after 2 ms", name, r, clients*each)
		}
	}
	// The scheduler decides again what it has decided.
	if stdout, stderr, status := nereid(t, "replay", "--verify", path); status != 0 || !strings.Contains(stdout, "are as logged") {
		t.Errorf("replay: %d %s%s", status, stdout, stderr)
	}

	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text[:len(text)-5], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stderr, status := nereid(t, "simulate", "--trace="+path); status != 1 || len(stderr) == 0 {
		t.Errorf("a log that is cut off: exit status %d, %s", status, stderr)
	}
}
