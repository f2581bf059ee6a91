package worker_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// dying dies of a request, and starts again when the test opens the gate.
const dying = `
import os, sys
class TritonPythonModel:
    def initialize(self, args):
        here = os.path.dirname(__file__)
        if os.path.exists(here + "/started"):
            open(here + "/gate").close()
        open(here + "/started", "w").close()
    def execute(self, requests):
        print("last words", file=sys.stderr)
        os._exit(3)
`

// An instance whose process has died is unavailable with the cause, and has no
// credits, until it is there again.
func TestInstancesAreAwayWhileTheirProcessIs(t *testing.T) {
	if os.Getenv("NEREID_PYTHON") == "" {
		t.Skip("NEREID_PYTHON names no interpreter")
	}
	dir := t.TempDir()
	gate := filepath.Join(dir, "1", "gate")
	if err := os.Mkdir(filepath.Dir(gate), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "1", "model.py"), []byte(dying), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	h := newHarness(t)
	h.model("m", 1, func(v *nereidv1.ModelValue) {
		v.Config.Backend, v.Url, v.Versions[0].Url = "python", "file://"+dir, "file://"+dir+"/1"
	})
	h.applied(h.assign(assigned("m", 1, 1)))
	credits := func() (n int) {
		for _, g := range h.scheduler.open {
			n += g.Credits
		}
		return n
	}
	h.scheduler.await(t, "credit", func() bool { return credits() == 2 })
	for id := range h.scheduler.granted() {
		h.scheduler.executor.Execute(&infer.Batch{ID: infer.BatchID{Epoch: 1, Number: 1}, Instance: id, Requests: []*infer.Request{{
			Work: infer.Work{Request: infer.RequestID{Origin: 1, Number: 2}, Attempt: 1, Epoch: 1}, BatchSize: 1,
			Inputs: []infer.Tensor{{Name: "x", Datatype: tensor.Int8, Shape: tensor.Shape{1, 4}, Data: tensor.InHeap(make([]byte, 4))}},
		}}})
	}
	if r := <-h.responses; errs.Of(r.Err) != errs.StubUnhealthy {
		t.Errorf("failed with %v", r.Err)
	}
	h.scheduler.await(t, "withdrawal", func() bool { return credits() == 0 })
	version := func(v *said) *nereidv1.WorkerVersion { // nil while the lease is another's, or nobody's
		if len(v.GetVersions()) == 0 {
			return nil
		}
		return v.GetVersions()[0]
	}
	in := func(v *said) *nereidv1.WorkerInstance {
		if instances := version(v).GetInstances(); len(instances) > 0 {
			return instances[0]
		}
		return nil
	}
	const cause = "Stub process 'm_0_0' is not healthy: it ended with exit status 3; its last line was: last words"
	h.await("cause", func(v *said) bool {
		return in(v).GetState() == nereidv1.State_STATE_UNAVAILABLE && strings.Contains(in(v).GetCause(), cause) &&
			version(v).GetState() == nereidv1.State_STATE_READY
	})
	opened, err := os.OpenFile(gate, os.O_WRONLY, 0) // when the process is started again
	if err != nil {
		t.Fatal(err)
	}
	opened.Close()
	h.scheduler.await(t, "credit", func() bool { return credits() == 2 })
	h.await("instance", func(v *said) bool { return in(v).GetState() == nereidv1.State_STATE_READY && in(v).GetCause() == "" })
}
