package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/process"
)

func TestWrongSettingsOfANodeAreMisuse(t *testing.T) {
	nothing := func(string) (string, bool) { return "", false }
	for want, args := range map[string][]string{
		"--id is given to each worker": {"--worker=/bin/true", "--", "--id=x"},
		"leave one out":                {"--worker=/bin/true", "--cpu-workers=none", "--gpu-workers=none"},
		"--crash-budget is 0":          {"--worker=/bin/true", "--crash-budget=0"},
		"no worker's program at":       {"--worker=/no/such/worker"},
		"--metrics-label=x":            {"--worker=/bin/true", "--metrics-label=x"},
	} {
		var out bytes.Buffer
		if status := run(context.Background(), append([]string{"node"}, args...), &out, &out, nothing); status != process.ExitUsage || !strings.Contains(out.String(), want) {
			t.Errorf("%v: status %d, %q; want %q", args, status, out.String(), want)
		}
	}
}
