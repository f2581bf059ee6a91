package rest_test

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// fakeLog keeps settings as a log does.
type fakeLog struct {
	core.LogSettings
	changes []map[string]string
}

func (l *fakeLog) Settings() core.LogSettings { return l.LogSettings }

func (l *fakeLog) Set(_ context.Context, changes map[string]string) error {
	l.changes = append(l.changes, changes)
	if v, ok := changes["log_info"]; ok {
		l.Info = v == "true"
	}
	if v, ok := changes["log_format"]; ok {
		l.Format = v
	}
	return nil
}

func newLogServer(t testing.TB) (*server, *fakeLog) {
	log := &fakeLog{LogSettings: core.LogSettings{File: "l", Info: true, Warning: true, Error: true, Verbose: 2, Format: "default"}}
	return newServerOn(t, func(d *core.Deps) { d.Logging = log }), log
}

// What Triton responds was recorded from its server of release 2.51, which changes a part
// of the settings where another is wrong.
func TestLogging(t *testing.T) {
	const all = `{"log_file":"l","log_info":true,"log_warning":true,"log_error":true,"log_verbose_level":2,"log_format":"default"}`
	for name, c := range map[string]struct {
		body, want string
		status     int
		changes    map[string]string
	}{
		"a level":               {`{"log_verbose_level":4294967295}`, all, 200, map[string]string{"log_verbose_level": "4294967295"}},
		"several":               {`{"log_info":true,"log_warning":false,"log_error":true,"log_format":"default"}`, all, 200, map[string]string{"log_info": "true", "log_warning": "false", "log_error": "true", "log_format": "default"}},
		"null changes nothing":  {`{"log_file":null,"log_info":null,"log_verbose_level":null,"log_format":null}`, all, 200, nil},
		"an unknown member":     {`{"foo":1}`, all, 200, nil},
		"an array":              {`[]`, all, 200, nil},
		"a file":                {`{"log_info":false,"log_file":"/etc/cron.d/x"}`, "log file location can not be updated through network protocol", 501, nil},
		"an empty file":         {`{"log_file":""}`, "log file location can not be updated through network protocol", 501, nil},
		"a text for a flag":     {`{"log_info":"no"}`, "attempt to access JSON non-boolean as boolean", 500, nil},
		"a negative level":      {`{"log_verbose_level":-1}`, "attempt to access JSON non-unsigned-integer as unsigned-integer", 500, nil},
		"a fractional level":    {`{"log_verbose_level":1.5}`, "attempt to access JSON non-unsigned-integer as unsigned-integer", 500, nil},
		"too high a level":      {`{"log_verbose_level":4294967296}`, "attempt to access JSON non-unsigned-integer as unsigned-integer", 500, nil},
		"a text for a level":    {`{"log_verbose_level":"1"}`, "attempt to access JSON non-unsigned-integer as unsigned-integer", 500, nil},
		"an unknown format":     {`{"log_info":false,"log_format":"x"}`, "invalid argument for --log_format, got: x", 503, nil},
		"a number for a format": {`{"log_format":5}`, "attempt to access JSON non-string as string", 500, nil},
		"no body":               {"", "failed to parse the request JSON buffer: The document is empty. at 0", 500, nil},
		"a cut-off body":        {`{"log_inf`, "failed to parse the request JSON buffer: Missing a closing quotation mark in string. at 9", 500, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s, log := newLogServer(t)
			want := response{Status: c.status, Header: map[string]string{"Content-Type": "application/json"}, Body: c.want}
			if c.status != 200 {
				want.Body = `{"error":"` + c.want + `"}`
			}
			if d := cmp.Diff(want, s.doLike(request{path: "/v2/logging", body: c.body}, want)); d != "" {
				t.Error(d)
			}
			var changes map[string]string
			if len(log.changes) > 0 {
				changes = log.changes[0]
			}
			if d := cmp.Diff(c.changes, changes); d != "" {
				t.Errorf("changed (-want +got):\n%s", d)
			}
			if a := s.do(request{method: http.MethodGet, path: "/v2/logging"}); a.Body != all {
				t.Errorf("the settings are %s", a.Body)
			}
		})
	}
}

func TestAServerWhoseLogIsFixedHasNoLogging(t *testing.T) {
	s := newServer(t, nil)
	want := refusal(501, "the log of this server has no settings to be read or changed", "unsupported")
	for _, q := range []request{{method: http.MethodGet, path: "/v2/logging"}, {path: "/v2/logging", body: `{}`}} {
		if d := cmp.Diff(want, s.doLike(q, want)); d != "" {
			t.Error(d)
		}
	}
}

// FuzzLogging sends any body: a file is never changed, and what is changed is among what
// can be.
func FuzzLogging(f *testing.F) {
	for _, body := range []string{`{"log_info":false,"log_format":"ISO8601","log_verbose_level":3}`, `{"log_file":"x"}`, `{"log_format":"\ud800"}`, `[1]`, ``, `{"log_info":NaN}`, "\ufeff{}"} {
		f.Add(body)
	}
	s, log := newLogServer(f)
	f.Fuzz(func(t *testing.T, body string) {
		log.changes = nil
		a := s.do(request{path: "/v2/logging", body: body})
		known := []string{"log_error", "log_format", "log_info", "log_verbose_level", "log_warning"}
		for _, changes := range log.changes {
			for name := range maps.Keys(changes) {
				if !slices.Contains(known, name) {
					t.Errorf("%q changes %s", body, name)
				}
			}
		}
		if !json.Valid([]byte(a.Body)) || a.Status != 200 && len(log.changes) > 0 || len(s.logged) > 0 {
			t.Errorf("%q: %+v, %v", body, a, s.logged)
		}
	})
}
