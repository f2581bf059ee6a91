package rpc_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/policy"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
	"github.com/nereid-serving/nereid/services/gateway/internal/tenants"
)

// access is who may call a method, and what a tenant learns from it.
type access int

const (
	open   access = iota // everybody, without a key
	tenant               // every tenant that has the API; no model shows
	model                // tenants that may use the model that the message names
	list                 // every tenant that has the API; it sees its own models alone
)

// accesses has every method of every service, with the message that names the model
// add_sub, or all models.
var accesses = map[string]struct {
	access
	in proto.Message
}{
	"inference.GRPCInferenceService/ServerLive":                     {open, nil},
	"inference.GRPCInferenceService/ServerReady":                    {open, nil},
	"inference.GRPCInferenceService/ModelReady":                     {open, &inference.ModelReadyRequest{Name: "add_sub"}},
	"inference.GRPCInferenceService/ServerMetadata":                 {tenant, nil},
	"inference.GRPCInferenceService/ModelMetadata":                  {model, &inference.ModelMetadataRequest{Name: "add_sub"}},
	"inference.GRPCInferenceService/ModelInfer":                     {model, addSub(1)},
	"inference.GRPCInferenceService/ModelStreamInfer":               {model, addSub(1)},
	"inference.GRPCInferenceService/ModelConfig":                    {model, &inference.ModelConfigRequest{Name: "add_sub"}},
	"inference.GRPCInferenceService/ModelStatistics":                {list, nil},
	"inference.GRPCInferenceService/RepositoryIndex":                {list, nil},
	"inference.GRPCInferenceService/RepositoryModelLoad":            {model, &inference.RepositoryModelLoadRequest{ModelName: "add_sub"}},
	"inference.GRPCInferenceService/RepositoryModelUnload":          {model, &inference.RepositoryModelUnloadRequest{ModelName: "add_sub"}},
	"inference.GRPCInferenceService/SystemSharedMemoryStatus":       {tenant, nil},
	"inference.GRPCInferenceService/SystemSharedMemoryRegister":     {tenant, nil},
	"inference.GRPCInferenceService/SystemSharedMemoryUnregister":   {tenant, nil},
	"inference.GRPCInferenceService/CudaSharedMemoryStatus":         {tenant, nil},
	"inference.GRPCInferenceService/CudaSharedMemoryRegister":       {tenant, nil},
	"inference.GRPCInferenceService/CudaSharedMemoryUnregister":     {tenant, nil},
	"inference.GRPCInferenceService/TraceSetting":                   {tenant, nil},
	"inference.GRPCInferenceService/LogSettings":                    {tenant, nil},
	"grpc.health.v1.Health/Check":                                   {open, nil},
	"grpc.health.v1.Health/List":                                    {open, nil},
	"grpc.health.v1.Health/Watch":                                   {open, nil},
	"grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      {tenant, nil},
	"grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": {tenant, nil},
	"nereid.v1.ClusterService/Status":                               {list, nil},
}

// Every method refuses callers without a key, with a wrong one, of another tenant and
// without a right to its API. A method that is not in the table fails.
func TestEveryMethodIsAuthorized(t *testing.T) {
	every := "apis: [inference, metadata, model-config, model-repository, statistics, shared-memory, trace, logging, explain]"
	text := "version: 1\ntenants:\n"
	for name, may := range map[string]string{"mine": "models: [add_sub], " + every, "other": "models: [tokens], " + every, "all": every, "plain": "models: [add_sub], apis: [inference]"} {
		text += "  " + name + ": {" + may + ", keys: [{sha256: " + policy.Key(name) + "}]}\n"
	}
	p, findings := policy.Read([]byte(text))
	if p == nil {
		t.Fatal(findings)
	}
	all := tenants.New(unmetered{}, time.Now)
	all.Set(p, nil)
	s := serveWith(t, rpc.Options{Cluster: many{}, Options: path.Options{Tenants: all, Costs: new(tenants.Costs)}})
	for service, info := range s.server.GetServiceInfo() {
		for _, m := range info.Methods {
			name := service + "/" + m.Name
			who, listed := accesses[name]
			if !listed {
				t.Errorf("%s is not in the table of who may call it", name)
				continue
			}
			for _, key := range []string{"", "wrong", "other", "mine", "all", "plain"} {
				want, err := codes.OK, s.callAs(t, "/"+name, key, who.in)
				switch {
				case who.access == open:
				case key == "" || key == "wrong":
					want = codes.Unauthenticated
				case key == "plain" && !strings.HasSuffix(name, "Infer"), key == "other" && who.access == model:
					want = codes.PermissionDenied
				}
				if got := status.Code(err); want != codes.OK && got != want || want == codes.OK && (got == codes.Unauthenticated || got == codes.PermissionDenied) {
					t.Errorf("%s with the key %q: %v, want %v", name, key, err, want)
				}
			}
		}
	}
	for key, want := range map[string][2]bool{"mine": {true, false}, "other": {false, true}, "all": {true, true}} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-api-key", key)
		index, err := s.client.RepositoryIndex(ctx, &inference.RepositoryIndexRequest{})
		statistics, failed := s.client.ModelStatistics(ctx, &inference.ModelStatisticsRequest{})
		cluster, down := nereidv1.NewClusterServiceClient(s.conn).Status(ctx, &nereidv1.StatusRequest{})
		if err != nil || failed != nil || down != nil {
			t.Fatal(err, failed, down)
		}
		for shown, text := range map[string]string{"index": index.String(), "statistics": statistics.String(), "status": cluster.String()} {
			if got := [2]bool{strings.Contains(text, "add_sub"), strings.Contains(text, "tokens")}; got != want {
				t.Errorf("the %s that %q sees has add_sub and tokens: %v, want %v: %s", shown, key, got, want, text)
			}
		}
		if secret := strings.Contains(cluster.String(), "10.0.0.1") || strings.Contains(cluster.String(), "is broken"); secret != (key == "all") {
			t.Errorf("%q sees of the machines: %v", key, cluster)
		}
	}
	for key, want := range map[string]codes.Code{"mine": codes.PermissionDenied, "all": codes.Unavailable} { // there is no registry
		in := &inference.RepositoryModelUnloadRequest{ModelName: "add_sub", Parameters: map[string]*inference.ModelRepositoryParameter{
			"unload_dependents": {ParameterChoice: &inference.ModelRepositoryParameter_BoolParam{BoolParam: true}},
		}}
		if _, err := s.client.RepositoryModelUnload(metadata.AppendToOutgoingContext(t.Context(), "x-api-key", key), in); status.Code(err) != want {
			t.Errorf("unloading dependents with the key %q: %v", key, err)
		}
	}
}

// callAs calls a method with a key, and returns the error of the call or of its request.
func (s *server) callAs(t *testing.T, method, key string, in proto.Message) error {
	t.Helper()
	if in == nil {
		in = &emptypb.Empty{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel() // a watch has no end
	if key != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "x-api-key", key)
	}
	if strings.HasSuffix(method, "/ModelStreamInfer") { // which gives the status of its first error so
		ctx = metadata.AppendToOutgoingContext(ctx, "triton_grpc_error", "true")
	}
	stream, err := s.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	_ = stream.SendMsg(in)
	_ = stream.CloseSend()
	if err := stream.RecvMsg(new(emptypb.Empty)); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// many is a cluster with two models.
type many struct{ rpc.Cluster }

func (many) Status(context.Context) (*nereidv1.ClusterStatus, error) {
	return &nereidv1.ClusterStatus{
		Problems: []string{"the model tokens2 is broken"},
		Services: []*nereidv1.ServiceStatus{{Role: "worker", Address: "10.0.0.1:8031"}},
		Models:   []*nereidv1.ModelStatus{{Name: "add_sub"}, {Name: "tokens"}},
		Queues:   []*nereidv1.QueueStatus{{Model: &nereidv1.ModelRef{Name: "add_sub"}}, {Model: &nereidv1.ModelRef{Name: "tokens"}}},
	}, nil
}

type unmetered struct{}

func (unmetered) Shadowed(string, errs.Reason) {}
func (unmetered) Retried(string, bool)         {}
