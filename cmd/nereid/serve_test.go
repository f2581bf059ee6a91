package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

// Values out of their ranges are usage errors, as unknown flags are: the process
// would end the same way if it were started again.
func TestValuesOutOfRangeAreUsageErrors(t *testing.T) {
	for flags, want := range map[string]string{
		"--http-port=70000":             "--http-port is 70000",
		"--grpc-port=8000":              "both 8000",
		"--load-model=m":                "--model-control-mode=explicit",
		"--model-config-name=":          "--model-config-name is empty",
		"--backend-config=echo":         "--backend-config=echo",
		"--metrics-label=x":             "--metrics-label=x",
		"--metrics-interval-ms=0":       "--metrics-interval-ms is 0",
		"--max-queued-requests=-1":      "--max-queued-requests",
		"--http-port=-1 --grpc-port=-1": "--http-port is -1",

		"--watch --model-control-mode=explicit":  "--watch loads models by itself",
		"--watch --model-repository=s3://b/more": "--watch follows local directories alone",
	} {
		var stderr bytes.Buffer
		args := append([]string{"serve", "--model-repository=models"}, strings.Fields(flags)...)
		if status := run(t.Context(), args, io.Discard, &stderr, noEnv); status != 64 || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: exit status %d, want 64 with %q: %s", flags, status, want, &stderr)
		}
	}
}

// Triton takes these too.
func TestRepeatedRepositoriesAndUnknownBackendsAreTaken(t *testing.T) {
	for _, flag := range []string{"--model-repository=x", "--backend-config=nothere,x=y"} {
		if command, text := parseServe(flag); command == nil {
			t.Errorf("%s: %s", flag, text)
		}
	}
}
