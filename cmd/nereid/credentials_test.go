package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/process"
)

func TestCredentialsAreMadeOnceAndKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	var stdout, stderr bytes.Buffer
	if status := run(t.Context(), []string{"credentials", dir, "--process=worker/w1"}, &stdout, &stderr, noEnv); status != process.ExitOK {
		t.Fatalf("exit status %d: %s", status, &stderr)
	}
	for _, file := range []string{"worker/w1/certificate.pem", "registry/certificate.pem", "nats/certificate.pem", "operator/certificate.pem", "gateway/nats.nk"} {
		if !strings.Contains(stdout.String(), filepath.Join(dir, file)) {
			t.Errorf("%s is not named:\n%s", file, &stdout)
		}
	}
	key := filepath.Join(dir, "worker", "key.pem")
	before, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	stdout.Reset()
	if status := run(t.Context(), []string{"credentials", dir}, &stdout, &stderr, noEnv); status != process.ExitOK || strings.Contains(stdout.String(), "certificate.pem") {
		t.Errorf("again: exit status %d, %s%s", status, &stdout, &stderr)
	}
	if after, err := os.ReadFile(key); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the key was replaced: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "gateway", "certificate.pem"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	stderr.Reset()
	if status := run(t.Context(), []string{"credentials", dir}, io.Discard, &stderr, noEnv); status != process.ExitFailed || !strings.Contains(stderr.String(), "is not replaced") {
		t.Errorf("over another's file: exit status %d, %s", status, &stderr)
	}
}

func TestProcessesOfCredentials(t *testing.T) {
	for _, wrong := range []string{"worker", "worker/", "admin/a", "worker/a/b", "worker/.."} {
		var stderr bytes.Buffer
		if status := run(t.Context(), []string{"credentials", t.TempDir(), "--process=" + wrong}, io.Discard, &stderr, noEnv); status != process.ExitUsage || !strings.Contains(stderr.String(), "ROLE/ID") {
			t.Errorf("%s: exit status %d, %s", wrong, status, &stderr)
		}
	}
}
