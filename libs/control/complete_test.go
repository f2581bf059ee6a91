package control_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

type completer func(control.Draft) ([]byte, error)

func (c completer) Complete(_ context.Context, d control.Draft) ([]byte, error) { return c(d) }

func TestWorkersAreCalledToComplete(t *testing.T) {
	draft := control.Draft{
		Model: infer.ModelRef{Namespace: "/models", Name: "m", Version: 7}, Config: []byte(`{"name":"m"}`),
		ModelURL: "file:///models/m", URL: "file:///models/m/7", Digest: "sha256:1", Fingerprint: "2",
	}
	var given control.Draft
	outcome := error(nil)
	at, stop := serve(t, "tcp", "127.0.0.1:0", func(r grpc.ServiceRegistrar) {
		control.RegisterWorker(r, completer(func(d control.Draft) ([]byte, error) {
			given = d
			return []byte(`{"name":"m","max_batch_size":8}`), outcome
		}), func(err error) { t.Errorf("a bug: %v", err) })
	})
	got, err := control.Complete(t.Context(), at, draft, control.Options{})
	if err != nil || string(got) != `{"name":"m","max_batch_size":8}` {
		t.Errorf("Complete = %s, %v", got, err)
	}
	if diff := cmp.Diff(draft, given); diff != "" {
		t.Errorf("the worker was given (-want +got):\n%s", diff)
	}
	outcome = errs.New(errs.LoadFailed, "ValueError: boom")
	if _, err := control.Complete(t.Context(), at, draft, control.Options{}); errs.Of(err) != errs.LoadFailed || errs.From(err).Msg != "ValueError: boom" {
		t.Errorf("the model's error came as %v", err)
	}
	stop()
	if _, err := control.Complete(t.Context(), at, draft, control.Options{}); errs.Of(err) != errs.StateUnavailable {
		t.Errorf("a worker that is gone: %v", err)
	}
}
