package worker_test

import (
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

func TestWhatCannotBeCompleted(t *testing.T) {
	h := newHarness(t)
	draft := control.Draft{
		Model: infer.ModelRef{Name: "m", Version: 1}, Config: []byte(`{"name": "m", "backend": "echo"}`),
		ModelURL: "file:///nowhere/m", URL: "file:///nowhere/m/1",
	}
	_, err := h.worker.Complete(t.Context(), draft)
	if errs.Of(err) != errs.LoadFailed || !strings.Contains(err.Error(), "models of the backend echo do not complete their own configurations") {
		t.Errorf("of a backend without code: %v", err)
	}
	broken := draft
	broken.Config = []byte(`{"name": 1}`)
	if _, err := h.worker.Complete(t.Context(), broken); errs.Of(err) != errs.ConfigInvalid {
		t.Errorf("what is no configuration: %v", err)
	}
	h.stop()
	if _, err := h.worker.Complete(t.Context(), draft); errs.Of(err) != errs.Draining {
		t.Errorf("of a worker that stopped: %v", err)
	}
}
