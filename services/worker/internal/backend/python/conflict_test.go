package python_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

func TestConflictingMetricsAreExceptions(t *testing.T) {
	const code = `
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        kind = pb_utils.MetricFamily.GAUGE if requests[0].request_id() == "gauge" else pb_utils.MetricFamily.COUNTER
        try:
            self.family = pb_utils.MetricFamily("things", "Things.", kind)
            self.metric = self.family.Metric(labels={"of": "m"})
        except pb_utils.TritonModelException as error:
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))]
        self.metric.increment(2)
        return [pb_utils.InferenceResponse([])]
`
	w := run(t, code, options{})
	if r := w.infer(&infer.Request{ID: "counter"}); r.Err != nil {
		t.Fatal(r.Err)
	}
	other, err := w.model.NewInstance(t.Context(), backend.InstanceSpec{Name: "m_0_1"})
	if err != nil {
		t.Fatal(err)
	}
	second := newWorld(t)
	second.serve(other)
	second.fails(second.infer(&infer.Request{ID: "gauge"}), errs.ExecutionFailed, "Error when creating MetricFamily: Family name already exists with different type")
	if r := second.infer(&infer.Request{ID: "counter"}); r.Err != nil {
		t.Error("the stub has not gone on: ", r.Err)
	}
	if err := testutil.GatherAndCompare(w.metrics, strings.NewReader("# HELP things Things.\n# TYPE things counter\nthings{of=\"m\"} 4\n")); err != nil {
		t.Error(err)
	}
}
