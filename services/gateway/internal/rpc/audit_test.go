package rpc_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/metadata"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/policy"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
	"github.com/nereid-serving/nereid/services/gateway/internal/tenants"
)

// The log of administrative calls says whose a call was, which model it named and what
// became of it. A tenant that may use one model alone may load it.
func TestAdministrativeCallsAreAudited(t *testing.T) {
	p, findings := policy.Read([]byte("version: 1\ntenants: {acme: {models: [add_sub], apis: [inference, model-repository], keys: [{sha256: " + policy.Key("k") + "}]}}"))
	if p == nil {
		t.Fatal(findings)
	}
	all := tenants.New(unmetered{}, time.Now)
	all.Set(p, nil)
	lines := make(chan []string, 1)
	s := serveWith(t, rpc.Options{Options: path.Options{Tenants: all, Costs: new(tenants.Costs), Audit: func(c *path.Call, err error) {
		tenant := ""
		if c.Tenant != nil {
			tenant = c.Tenant.Name
		}
		lines <- []string{tenant, c.Method, c.Model, string(errs.Of(err))}
	}}})
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "k")
	for _, tt := range []struct {
		name string
		call func() error
		want []string
	}{
		{"a load", func() error {
			_, err := s.client.RepositoryModelLoad(ctx, &inference.RepositoryModelLoadRequest{ModelName: "add_sub"})
			return err
		}, []string{"acme", "RepositoryModelLoad", "add_sub", "model_control_disabled"}}, // the server has no repository
		{"a load of another's model", func() error {
			_, err := s.client.RepositoryModelLoad(ctx, &inference.RepositoryModelLoadRequest{ModelName: "tokens"})
			return err
		}, []string{"acme", "RepositoryModelLoad", "tokens", "tenant_forbidden"}},
		{"an unload", func() error {
			_, err := s.client.RepositoryModelUnload(ctx, &inference.RepositoryModelUnloadRequest{ModelName: "add_sub"})
			return err
		}, []string{"acme", "RepositoryModelUnload", "add_sub", "model_control_disabled"}},
		{"a load by nobody", func() error {
			_, err := s.client.RepositoryModelLoad(t.Context(), &inference.RepositoryModelLoadRequest{ModelName: "add_sub"})
			return err
		}, []string{"", "RepositoryModelLoad", "", "token_missing"}}, // its message is not read
	} {
		if err := tt.call(); err == nil {
			t.Errorf("%s: no error", tt.name)
		}
		if diff := cmp.Diff(tt.want, <-lines); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	if _, err := s.client.ServerMetadata(ctx, &inference.ServerMetadataRequest{}); err == nil || len(lines) > 0 {
		t.Errorf("%v; a call that changes nothing is audited %d times", err, len(lines))
	}
}
