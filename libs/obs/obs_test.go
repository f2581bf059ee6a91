package obs_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/obs"
)

func TestLogWritesFieldsAndHonoursLevels(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	config := obs.LogConfig{Info: true, Error: true}
	config.Format, config.File = "json", file
	log, closeLog, err := obs.NewLogger(config)
	if err != nil {
		t.Fatal(err)
	}
	log.Debug("not shown")
	log.Warn("not shown")
	log.Info("model loaded", obs.Model(infer.ModelRef{Name: "m", Version: 2, Generation: 3})...)
	log.Error("model failed", obs.Err(errs.Wrap(errs.LoadFailed, errors.New("no file"), "cannot load"))...)
	closeLog()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines, want 2:\n%s", len(lines), data)
	}
	var fields map[string]any
	if err := json.Unmarshal([]byte(lines[0]), &fields); err != nil {
		t.Fatal(err)
	}
	if fields["msg"] != "model loaded" || fields["model"] != "m" || fields["version"] != 2.0 {
		t.Errorf("fields %v", fields)
	}
	if !strings.Contains(lines[1], `"reason":"load_failed"`) {
		t.Errorf("no reason in %s", lines[1])
	}
}

func TestLogRefusesBadSettings(t *testing.T) {
	for _, c := range []obs.LogConfig{{Format: "xml"}, {File: filepath.Join(t.TempDir(), "no", "such", "dir")}} {
		if _, _, err := obs.NewLogger(c); errs.Of(err) != errs.ConfigInvalid {
			t.Errorf("%+v: %v, want %s", c, err, errs.ConfigInvalid)
		}
	}
}

func TestMetricsAreServed(t *testing.T) {
	handler := obs.NewMetrics("1.2.3", nil).Handler()
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `nereid_build_info{version="1.2.3"} 1`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	w = httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/metrics", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d, want 405", w.Code)
	}
}

func TestPlaceIsOnEverySeries(t *testing.T) {
	m := obs.NewMetrics("1.2.3", map[string]string{"cluster": "eu", "pod": "nereid-0"})
	m.Handler() // has metrics of its own
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, series := range f.GetMetric() {
			if text := series.String(); !strings.Contains(text, `"cluster"`) || !strings.Contains(text, `"nereid-0"`) {
				t.Errorf("%s: %s", f.GetName(), text)
			}
		}
	}
}

func TestPlaceHasThreeNames(t *testing.T) {
	if err := obs.CheckPlace(map[string]string{"cluster": "a", "node": "b", "pod": "c"}); err != nil {
		t.Error(err)
	}
	for label, want := range map[string]string{"model": "cluster, node, pod", "": "cluster, node, pod"} {
		if err := obs.CheckPlace(map[string]string{label: "x"}); errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", label, err)
		}
	}
	if err := obs.CheckPlace(map[string]string{"pod": "\xff"}); errs.Of(err) != errs.ConfigInvalid {
		t.Errorf("no UTF-8: %v", err)
	}
}

func TestTagsOfModelsAreLabelsBehindAnUnderscore(t *testing.T) {
	ref := infer.ModelRef{Name: "m", Version: 2}
	got := obs.ModelLabels(ref, map[string]string{"team": "vision", "_reserved": "x", "no-label": "y"})
	want := prometheus.Labels{"model": "m", "version": "2", "_team": "vision"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	ref.Namespace, want = "/models", prometheus.Labels{"model": "m", "version": "2", "namespace": "/models"}
	if diff := cmp.Diff(want, obs.ModelLabels(ref, nil)); diff != "" {
		t.Error(diff)
	}
}
