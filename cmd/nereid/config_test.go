package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/process"
)

// required are the flags without which a program does not start.
func required(p process.Program) []string {
	if p.Name == "registry" || p.Name == "serve" {
		return []string{"--model-repository=models"}
	}
	return nil
}

func TestPrintedSettingsAreAFileOfThem(t *testing.T) {
	for _, p := range programs() {
		t.Run(p.Name, func(t *testing.T) {
			text := printed(t, append([]string{"config", "print", p.Name}, required(p)...)...)
			file := filepath.Join(t.TempDir(), "settings.yaml")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			printed(t, "config", "check", p.Name, file)
			again := printed(t, "config", "print", p.Name, "--config", file)
			if diff := cmp.Diff(withoutSources(text), withoutSources(again)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func withoutSources(text string) (lines []string) {
	for line := range strings.Lines(text) {
		value, _, _ := strings.Cut(line, " # ")
		lines = append(lines, strings.TrimSpace(value))
	}
	return lines
}

func TestPrintedSettingsSayWhereTheyComeFrom(t *testing.T) {
	file := filepath.Join(t.TempDir(), "settings.yaml")
	if err := os.WriteFile(file, []byte("model-control-mode: poll\nrepository-poll-secs: 3\nid: ''\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("NEREID_REPOSITORY_POLL_SECS", "4")
	text := printed(t, "config", "print", "registry", "--config", file, "--model-repository=a b", "--nats-url=nats://user:secret@host:1")
	for name, want := range map[string]string{
		"model-repository":     "['a b'] # --model-repository",
		"model-control-mode":   "poll # " + file + ":1",
		"repository-poll-secs": "4 # NEREID_REPOSITORY_POLL_SECS",
		"log-format":           "default # default",
		"nats-url":             "'nats://user:xxxxx@host:1' # --nats-url",
	} {
		found := false
		for line := range strings.Lines(text) {
			found = found || strings.Join(strings.Fields(line), " ") == name+": "+want
		}
		if !found {
			t.Errorf("no %s: %s in\n%s", name, want, text)
		}
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	text := printed(t, "config", "print", "serve", "--model-repository=x", "--http-restricted-api=health,trace:key=open sesame",
		"--cache-config=redis,host=h,password=sesame=1,db=1")
	if strings.Contains(text, "sesame") || !strings.Contains(text, "key=***") || !strings.Contains(text, "redis,host=h,password=***,db=1") {
		t.Error(text)
	}
}

func TestEverySettingIsExplained(t *testing.T) {
	all := printed(t, "config", "explain")
	for _, p := range programs() {
		settings, err := p.Explain()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range settings {
			if s.Help == "" || !strings.Contains(all, "  "+s.Name+" ("+s.Variable+"): "+s.Type) {
				t.Errorf("%s: %s has no explanation", p.Name, s.Name)
			}
		}
	}
	for line := range strings.Lines(all) {
		if strings.HasPrefix(line, "      ") && len(line) > 120 {
			t.Errorf("a line of %d: %s", len(line), line)
		}
	}
}

func TestMistakesInSettingsAreNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "settings.yaml")
	for _, tt := range []struct {
		service, text, want string
		status              int
	}{
		{"registry", "nats-ur: x", `settings.yaml:1: unknown setting "nats-ur", did you mean "nats-url"?`, process.ExitFailed},
		{"registry", "http-port: 1", `unknown setting "http-port"`, process.ExitFailed},
		{"registry", "repository-poll-secs: 3", "--model-repository=DIR", process.ExitFailed},
		{"registry", "model-repository: m\nmodel-control-mode: sometimes", "sometimes", process.ExitFailed},
		{"serve", "model-repository: m\nhttp-port: 70000", "settings.yaml:2: --http-port is 70000", process.ExitFailed},
		{"serve", "model-repository: m\nresponse-cache-byte-size: -1", "settings.yaml:2: --response-cache-byte-size is -1", process.ExitFailed},
		{"serve", "model-repository: m\nrate-limit: sometimes", "settings.yaml:2: --rate-limit=sometimes: want off or execution_count", process.ExitFailed},
		{"scheduler", "rate-limit-resource: [R1]", "settings.yaml:1: --rate-limit-resource=R1: want NAME:COUNT or NAME:COUNT:DEVICE", process.ExitFailed},
		{"srv", "", `no service "srv"`, process.ExitUsage},
	} {
		if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if status := run(t.Context(), []string{"config", "check", tt.service, file}, &out, &out, noEnv); status != tt.status || !strings.Contains(out.String(), tt.want) {
			t.Errorf("%s: status %d, want %s: %s", tt.text, status, tt.want, out.String())
		}
	}
}
