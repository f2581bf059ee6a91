package obs_test

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/obs"
)

func TestLogWritesFieldsAndHonorsLevels(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	config := obs.LogConfig{Info: true, Error: true}
	config.Format, config.File = "json", file
	log, err := obs.OpenLog(config)
	if err != nil {
		t.Fatal(err)
	}
	log.Debug("not shown")
	log.Warn("not shown")
	log.Info("model loaded", obs.Model(infer.ModelRef{Name: "m", Version: 2, Generation: 3})...)
	log.Error("model failed", obs.Err(errs.Wrap(errs.LoadFailed, errors.New("no file"), "cannot load"))...)
	log.Close()
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
		if _, err := obs.OpenLog(c); errs.Of(err) != errs.ConfigInvalid {
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

// scrape reads the metrics as a client that accepts a format and an encoding.
func scrape(t *testing.T, m *obs.Metrics, accept, encoding string) (http.Header, string) {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", accept)
	r.Header.Set("Accept-Encoding", encoding)
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	var body io.Reader = w.Body
	if encoding == "gzip" {
		var err error
		if body, err = gzip.NewReader(body); err != nil {
			t.Fatal(err)
		}
	}
	text, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	return w.Header(), string(text)
}

func TestValuesAreWrittenInDigits(t *testing.T) {
	m := obs.NewMetrics("1.2.3", nil)
	values := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "g", Help: "Ends like a sample 1e+06"}, []string{"of"})
	m.MustRegister(values)
	want := map[string]float64{}
	for of, v := range map[string]float64{
		"0": 0, "1": 1, "-1": -1, "1000000": 1e6, "1140000000": 1.14e9, "-25276514304": -25276514304,
		"100000000000000000000000": 1e23, "0.00000015": 1.5e-7, "0.25": 0.25, "NaN": math.NaN(), "+Inf": math.Inf(1),
	} {
		want[of] = v
		values.WithLabelValues(of).Set(v)
	}
	values.WithLabelValues("a space and 1e+06").Set(2e6)
	want["a space and 1e+06"] = 2e6
	for i := range 2000 { // more than any buffer on the way
		values.WithLabelValues("many" + strconv.Itoa(i)).Set(3e6)
		want["many"+strconv.Itoa(i)] = 3e6
	}
	for _, encoding := range []string{"", "gzip"} {
		header, text := scrape(t, m, "text/plain", encoding)
		if header.Get("Content-Encoding") != encoding {
			t.Errorf("encoded as %q, want %q", header.Get("Content-Encoding"), encoding)
		}
		for _, line := range []string{
			"# HELP g Ends like a sample 1e+06", `g{of="1000000"} 1000000`, `g{of="-25276514304"} -25276514304`, `g{of="0.00000015"} 0.00000015`,
			`g{of="100000000000000000000000"} 100000000000000000000000`, `g{of="NaN"} NaN`, `g{of="+Inf"} +Inf`, `g{of="a space and 1e+06"} 2000000`,
		} {
			if !strings.Contains(text, line+"\n") {
				t.Errorf("no line %s", line)
			}
		}
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, series := range families["g"].GetMetric() {
			got[series.GetLabel()[0].GetValue()] = series.GetGauge().GetValue()
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateNaNs()); diff != "" {
			t.Errorf("values (-want +got):\n%s", diff)
		}
	}
}

func TestOtherFormatsAreServedUnchanged(t *testing.T) {
	m := obs.NewMetrics("1.2.3", nil)
	large := prometheus.NewGauge(prometheus.GaugeOpts{Name: "large", Help: "h"})
	large.Set(1e9)
	m.MustRegister(large)
	const delimited = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
	header, text := scrape(t, m, delimited, "")
	if got := header.Get("Content-Type"); !strings.HasPrefix(got, "application/vnd.google.protobuf") {
		t.Fatalf("served as %q", got)
	}
	decoder := expfmt.NewDecoder(strings.NewReader(text), expfmt.NewFormat(expfmt.TypeProtoDelim))
	for {
		var family dto.MetricFamily
		if err := decoder.Decode(&family); err != nil {
			t.Fatalf("no family large: %v", err)
		}
		if family.GetName() == "large" {
			if v := family.GetMetric()[0].GetGauge().GetValue(); v != 1e9 {
				t.Errorf("large = %v", v)
			}
			break
		}
	}
	// OpenMetrics is not offered: a client that prefers it has the text format.
	header, text = scrape(t, m, "application/openmetrics-text;version=1.0.0,text/plain;q=0.5", "")
	if got := header.Get("Content-Type"); !strings.HasPrefix(got, "text/plain") || !strings.Contains(text, "\nlarge 1000000000\n") {
		t.Errorf("served as %q: %s", got, text)
	}
}

func TestProcessLabelsAreOnEverySeries(t *testing.T) {
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

func TestProcessLabelsHaveThreeNames(t *testing.T) {
	if err := obs.CheckLabels(map[string]string{"cluster": "a", "node": "b", "pod": "c"}); err != nil {
		t.Error(err)
	}
	for label, want := range map[string]string{"model": "cluster, node, pod", "": "cluster, node, pod"} {
		if err := obs.CheckLabels(map[string]string{label: "x"}); errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", label, err)
		}
	}
	if err := obs.CheckLabels(map[string]string{"pod": "\xff"}); errs.Of(err) != errs.ConfigInvalid {
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
