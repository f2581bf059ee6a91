package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/process"
)

// printed is what a command prints that succeeds.
func printed(t *testing.T, args ...string) string {
	t.Helper()
	var out, errOut bytes.Buffer
	if status := run(t.Context(), args, &out, &errOut, noEnv); status != process.ExitOK {
		t.Fatalf("%s: exit status %d: %s", args, status, errOut.String())
	}
	return out.String()
}

func TestReferencePagesAreUpToDate(t *testing.T) {
	for _, name := range []string{"cli", "settings"} {
		page, err := os.ReadFile("../../docs/reference/" + name + ".md")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(page), printed(t, "reference", name)); diff != "" {
			t.Errorf("run go generate ./nereid in cmd (-page +flags):\n%s", diff)
		}
	}
}

func TestEveryCommandHasAnExample(t *testing.T) {
	for _, command := range []string{"serve", "check", "infer", "models", "node", "bus", "version", "config explain", "config print", "config check", "completion"} {
		if text := printed(t, append(strings.Fields(command), "--help")...); !strings.Contains(text, "    nereid "+command) && !strings.Contains(text, "(nereid "+command) {
			t.Errorf("%s has no example:\n%s", command, text)
		}
	}
}

func TestBashCompletes(t *testing.T) {
	shell, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	tests := map[string]struct{ words, want string }{
		"a command":        {"nereid mod", "models"},
		"a flag":           {"nereid serve --http-p", "--http-port"},
		"another's flag":   {"nereid models --http-p", ""},
		"a flag of all":    {"nereid infer m --conf", "--config"},
		"no hidden flag":   {"nereid serve --http-thread", ""},
		"files for values": {"nereid serve mod", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			script := printed(t, "completion", "bash") + `
COMP_WORDS=(` + tt.words + `); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _nereid; echo "${COMPREPLY[*]}"`
			out, err := exec.CommandContext(t.Context(), shell, "-c", script).CombinedOutput()
			if got := strings.TrimSpace(string(out)); err != nil || got != tt.want {
				t.Errorf("%q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func TestOtherShellsHaveScripts(t *testing.T) {
	for shell, want := range map[string]string{
		"zsh":  "compdef _nereid nereid",
		"fish": "complete -c nereid -n '__fish_seen_subcommand_from serve' -l http-port -r",
	} {
		if text := printed(t, "completion", shell); !strings.Contains(text, want) {
			t.Errorf("%s lacks %q:\n%s", shell, want, text)
		}
	}
}
