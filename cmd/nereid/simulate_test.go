package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/process"
)

// runSimulate runs the command in a directory with a model repository, models, a
// table of costs, and what else is given.
func runSimulate(t *testing.T, flags ...string) (status int, stdout, stderr string) {
	t.Helper()
	t.Chdir(t.TempDir())
	for path, text := range map[string]string{
		"models/m/config.pbtxt": echo + "dynamic_batching { }", "models/m/1/x": "",
		"models/bad/config.pbtxt": "max_batchsize: 1", "models/bad/1/x": "",
		"costs": "m cpu 1 - 1ms\nm cpu 2 - 1500us\n", "other": "n cpu 1 - 1ms\n", "broken": "m cpu 1ms\n",
		"log": "nereid decision log 7\n", "empty": "nereid decision log 3\n",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out, errOut bytes.Buffer
	none := func(string) (string, bool) { return "", false }
	status = run(t.Context(), append([]string{"simulate"}, flags...), &out, &errOut, none)
	return status, out.String(), errOut.String()
}

func drawn(flags ...string) []string {
	return append([]string{"--model-repository=models", "--model=m", "--rate=600", "--requests=5000", "--costs=costs"}, flags...)
}

func TestSimulatePrintsATable(t *testing.T) {
	status, stdout, stderr := runSimulate(t, drawn("--deadline=50ms", "--compare", "--devices=2", "--instances=2", "--batch-sizes=1:3,2:1")...)
	if status != process.ExitOK {
		t.Fatalf("exit status %d: %s", status, stderr)
	}
	for _, want := range []string{"NEREID", "FIFO", "arrivals                    5000", "answered in time            5000", "0 (0.00 %)", "p99", "simulated in"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the table lacks %q:\n%s", want, stdout)
		}
	}
}

func TestSimulatePrintsJSON(t *testing.T) {
	status, stdout, stderr := runSimulate(t, drawn("--rate=5000", "--arrivals=bursty", "--deadline=20ms", "--dispatch-cost=0s", "--json")...)
	var printed struct {
		Seed uint64
		Runs []struct {
			Name     string
			Arrivals int
			InTime   int `json:"in_time"`
			Refused  map[string]int
		}
	}
	if err := json.Unmarshal([]byte(stdout), &printed); err != nil || status != process.ExitOK || len(printed.Runs) != 1 {
		t.Fatalf("exit status %d, %v: %s%s", status, err, stdout, stderr)
	}
	if r := printed.Runs[0]; r.Name != "nereid" || r.Arrivals != 5000 || r.InTime == 0 || r.Refused["deadline_unmeetable"] == 0 || printed.Seed != 1 {
		t.Errorf("%+v", printed)
	}
}

func TestSimulateNamesMistakes(t *testing.T) {
	for name, tt := range map[string]struct {
		flags  []string
		want   string
		status int
	}{
		"nothing":            {nil, "--trace", process.ExitUsage},
		"two kinds":          {drawn("--trace=log"), "or --trace", process.ExitUsage},
		"no repository":      {[]string{"--model=m", "--rate=1", "--costs=costs"}, "--model-repository", process.ExitUsage},
		"no rate":            {drawn("--rate=0"), "--rate is 0", process.ExitUsage},
		"no costs":           {[]string{"--model=m", "--rate=1", "--model-repository=models"}, "--costs", process.ExitUsage},
		"no requests":        {drawn("--requests=0"), "--requests is 0", process.ExitUsage},
		"past deadline":      {drawn("--deadline=-1s"), "--deadline", process.ExitUsage},
		"devices":            {drawn("--devices=-1"), "--devices", process.ExitUsage},
		"dispatch cost":      {drawn("--dispatch-cost=-1s"), "--dispatch-cost", process.ExitUsage},
		"batch sizes":        {drawn("--batch-sizes=1:x"), "--batch-sizes=1:x", process.ExitUsage},
		"elements":           {drawn("--elements=0"), "--elements=0", process.ExitUsage},
		"policy":             {drawn("--policy=lifo"), "lifo", process.ExitUsage},
		"unknown model":      {drawn("--model=mm"), "which has bad, m", process.ExitFailed},
		"a bad model":        {drawn("--model=bad"), "nereid check models", process.ExitFailed},
		"large batches":      {drawn("--batch-sizes=3"), "takes 2 at most", process.ExitFailed},
		"costs of another":   {drawn("--costs=other"), "there are none of it", process.ExitFailed},
		"broken costs":       {drawn("--costs=broken"), "line 1 of the costs", process.ExitFailed},
		"no file of costs":   {drawn("--costs=missing"), "--costs=missing", process.ExitFailed},
		"costs of a log":     {drawn("--costs=log"), `format "7"`, process.ExitFailed},
		"no file of a trace": {[]string{"--trace=missing"}, "--trace=missing", process.ExitFailed},
		"no log":             {[]string{"--trace=costs"}, "is no decision log", process.ExitFailed},
		"another format":     {[]string{"--trace=log"}, `format "7"`, process.ExitFailed},
		"a log without more": {[]string{"--trace=empty"}, "damaged", process.ExitFailed},
	} {
		t.Run(name, func(t *testing.T) {
			status, stdout, stderr := runSimulate(t, tt.flags...)
			if status != tt.status || !strings.Contains(stderr, tt.want) || stdout != "" {
				t.Errorf("exit status %d, want %d with %q:\n%s%s", status, tt.status, tt.want, stdout, stderr)
			}
		})
	}
}
