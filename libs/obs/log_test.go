package obs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/obs"
)

// openLog opens a log whose lines the function returns.
func openLog(t *testing.T, c obs.LogConfig) (log *obs.Log, lines func() []string) {
	t.Helper()
	c.File = filepath.Join(t.TempDir(), "log")
	log, err := obs.OpenLog(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(log.Close)
	return log, func() []string {
		text, err := os.ReadFile(c.File)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	}
}

func TestLogWritesTritonsLines(t *testing.T) {
	process := strconv.Itoa(os.Getpid())
	for format, want := range map[string]string{
		"default": `^W\d{4} \d\d:\d\d:\d\d\.\d{6} ` + process + ` log_test\.go:\d+\] "a \\"b\\"\\nc" {"part": "p", "count": 3}$`,
		"ISO8601": `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ W ` + process + ` log_test\.go:\d+\] "a \\"b\\"\\nc" {"part": "p", "count": 3}$`,
		"text":    `^\d{4}-.*\tWARN\ta "b"$`, // the line breaks in a message
		"json":    `^{"level":"warn","ts":"[^"]*","msg":"a \\"b\\"\\nc","part":"p","count":3}$`,
	} {
		log, lines := openLog(t, obs.LogConfig{Warning: true, Format: format})
		log.With(zap.String("part", "p")).Warn("a \"b\"\nc", zap.Int("count", 3))
		if got := lines()[0]; !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("%s: %s", format, got)
		}
	}
}

func TestLogChangesWhileItIsWritten(t *testing.T) {
	log, lines := openLog(t, obs.LogConfig{Warning: true, Error: true, Format: "json"})
	earlier := log.With(zap.String("part", "p")) // as the services have got theirs
	earlier.Info("not shown")
	for i, s := range []obs.LogSettings{
		{Revision: 3, Values: map[string]string{obs.LogInfo: "true", obs.LogError: "false", obs.LogVerbose: "1", obs.LogFormat: "ISO8601", "log_of_a_later_release": "x"}},
		{Revision: 2, Values: map[string]string{obs.LogInfo: "false"}}, // which comes late
	} {
		if err := log.Apply(s); err != nil {
			t.Fatalf("change %d: %v", i, err)
		}
	}
	for name, value := range map[string]string{obs.LogFormat: "xml", obs.LogVerbose: "-1", obs.LogInfo: "maybe"} {
		if err := log.Apply(obs.LogSettings{Revision: 9, Values: map[string]string{name: value}}); errs.Of(err) != errs.InvalidParameter {
			t.Errorf("%s=%s: %v", name, value, err)
		}
	}
	earlier.Info("shown")
	earlier.Debug("shown, too")
	earlier.Error("not shown")
	if err := log.Apply(obs.LogSettings{Revision: 4}); err != nil {
		t.Fatal(err)
	}
	earlier.Info("not shown")
	earlier.Error("at the end")
	got := lines()
	if len(got) != 3 || !strings.HasSuffix(got[0], `"shown" {"part": "p"}`) || !strings.Contains(got[1], " I ") || !strings.Contains(got[2], `"msg":"at the end"`) {
		t.Errorf("logged:\n%s", strings.Join(got, "\n"))
	}
	if c := log.Config(); c.Info || !c.Error || c.Verbose != 0 || c.Format != "json" || c.File == "" {
		t.Errorf("%+v is in force", c)
	}
}
