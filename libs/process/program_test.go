package process_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/process"
)

// counter is a command with one setting.
type counter struct {
	Limit int `name:"count-limit" default:"${limit}" help:"How far."`
	fails error
	ran   bool
}

func (c *counter) Validate() error {
	if c.Limit < 0 {
		return errs.New(errs.ConfigInvalid, "--count-limit is %d: want 0 or more", c.Limit)
	}
	return nil
}

func (c *counter) Run(context.Context) error {
	c.ran = true
	return c.fails
}

func TestProgramsEndWithTheStatusThatSaysWhy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "settings.yaml")
	if err := os.WriteFile(file, []byte("count-limt: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		args   []string
		env    string
		fails  error
		status int
		ran    bool
		want   string
	}{
		"it runs":              {ran: true},
		"it fails":             {fails: errs.New(errs.StateUnavailable, "no store"), status: process.ExitFailed, ran: true, want: "counter: no store [state_unavailable]"},
		"it fails by a bug":    {fails: errors.New("oops"), status: process.ExitFailed, ran: true, want: "counter: oops\n"},
		"an unknown flag":      {args: []string{"--count-limt=1"}, status: process.ExitUsage, want: "--count-limit"},
		"a value out of range": {args: []string{"--count-limit=-1"}, status: process.ExitUsage, want: "want 0 or more"},
		"by the environment":   {env: "-2", status: process.ExitUsage, want: "NEREID_COUNT_LIMIT: --count-limit is -2"},
		"an unknown setting":   {args: []string{"--config=" + file}, status: process.ExitUsage, want: `:1: unknown setting "count-limt", did you mean "count-limit"?`},
		"help":                 {args: []string{"--help"}, want: "--count-limit=5"},
		"the version":          {args: []string{"--version"}, want: "counter " + process.Release},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := &counter{fails: tt.fails}
			p := process.Program{Name: "counter", Help: "It counts.", Vars: kong.Vars{"limit": "5"}, Settings: c, Run: c.Run}
			var out bytes.Buffer
			status := p.Execute(t.Context(), tt.args, &out, &out, []string{"NEREID_COUNT_LIMIT=" + tt.env})
			if status != tt.status || c.ran != tt.ran || !strings.Contains(out.String(), tt.want) {
				t.Errorf("status %d, want %d; ran %t, want %t; want %q in %q", status, tt.status, c.ran, tt.ran, tt.want, out.String())
			}
		})
	}
}

func TestMessageNamesTheReasonWhereThereIsOne(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{errors.New("no such file"), "no such file"},
		{errs.New(errs.ConfigInvalid, "a flag is wrong"), "a flag is wrong [config_invalid]"},
		{errs.New(errs.Bug, "no bus"), "no bus [bug]"},
	} {
		if got := process.Message(tt.err); got != tt.want {
			t.Errorf("Message = %q, want %q", got, tt.want)
		}
	}
}

func TestUsageMessageIsTheProgramsOwn(t *testing.T) {
	c := &counter{}
	p := process.Program{Name: "counter", Vars: kong.Vars{"limit": "5"}, Settings: c, Run: c.Run}
	var out bytes.Buffer
	if status := p.Execute(t.Context(), []string{"--count-limt=1"}, &out, &out, nil); status != 64 {
		t.Errorf("exit status %d, want EX_USAGE", status)
	}
	if got := process.UsageMessage(strings.Split(out.String(), "\n")); !strings.HasPrefix(got, "unknown flag --count-limt") {
		t.Errorf("%q of %q", got, out.String())
	}
	if got := process.UsageMessage([]string{"", " "}); got == "" {
		t.Error("no message for a program that wrote nothing")
	}
}

// logging is a program that does nothing but log.
type logging struct {
	Log process.LogSettings `embed:""`
}

func (l *logging) Run(context.Context) error {
	log, err := l.Log.Open()
	if err == nil {
		log.Close()
	}
	return err
}

func TestLogBeginsWithMisspelledVariables(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	l := new(logging)
	p := process.Program{Name: "logging", Settings: l, Log: &l.Log, Run: l.Run}
	environ := []string{"NEREID_LOG_FILE=" + file, "NEREID_LOG_FORMT=json", "NEREID_BIN=x"}
	if status := p.Execute(t.Context(), nil, os.Stdout, os.Stderr, environ); status != process.ExitOK {
		t.Fatalf("exit status %d", status)
	}
	text, err := os.ReadFile(file)
	if err != nil || strings.Count(string(text), "\n") != 1 || !strings.Contains(string(text), "NEREID_LOG_FORMT") || !strings.Contains(string(text), "NEREID_LOG_FORMAT") {
		t.Errorf("%v: the log is %q", err, text)
	}
}
