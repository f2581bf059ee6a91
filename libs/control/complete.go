package control

import (
	"context"

	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/identity"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/state"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Draft is a model configuration for the model's own code to complete, with the location of
// that code.
type Draft struct {
	// Model is the version whose code completes it; it has no generation yet.
	Model infer.ModelRef
	// Config is the configuration as modelconfig.JSON writes it.
	Config []byte
	// ModelURL and URL are the directories of the model and of the version, Digest
	// and Fingerprint name the content, as in the bucket models.
	ModelURL, URL, Digest, Fingerprint string
}

// Completer runs the code of models that complete their own configurations, as a
// worker does.
type Completer interface {
	// Complete returns the completed configuration. What is wrong with the model
	// has the reason load_failed, files that are not those of the digest
	// files_changed.
	Complete(context.Context, Draft) ([]byte, error)
}

// Complete calls the worker at an address. One that does not answer is
// state_unavailable.
func Complete(ctx context.Context, address string, d Draft, o Options) ([]byte, error) {
	conn, err := grpc.NewClient(address, dialOptions(identity.Expect(o.TLS, identity.Worker))...)
	if err != nil {
		return nil, errs.Wrap(errs.StateUnavailable, err, "the address %q of a worker cannot be used: %v", address, err)
	}
	defer conn.Close()
	reply, err := nereidv1.NewWorkerServiceClient(conn).Complete(ctx, &nereidv1.CompleteRequest{
		Model: state.Ref(d.Model), Config: d.Config, ModelUrl: d.ModelURL, Url: d.URL, Digest: d.Digest, Fingerprint: d.Fingerprint,
	})
	if err != nil {
		_, err = decode(err, "the worker at "+address)
		return nil, err
	}
	return reply.GetConfig(), nil
}

// RegisterWorker registers the calls of a worker; failed is as with
// [RegisterRegistry].
func RegisterWorker(r grpc.ServiceRegistrar, c Completer, failed func(error)) {
	nereidv1.RegisterWorkerServiceServer(r, &workerServer{completer: c, failed: failed})
}

type workerServer struct {
	nereidv1.UnimplementedWorkerServiceServer
	completer Completer
	failed    func(error)
}

// Complete implements the call.
func (s *workerServer) Complete(ctx context.Context, r *nereidv1.CompleteRequest) (*nereidv1.CompleteReply, error) {
	config, err := s.completer.Complete(ctx, Draft{
		Model: state.RefOf(r.GetModel()), Config: r.GetConfig(),
		ModelURL: r.GetModelUrl(), URL: r.GetUrl(), Digest: r.GetDigest(), Fingerprint: r.GetFingerprint(),
	})
	return &nereidv1.CompleteReply{Config: config}, toStatus(ctx, err, s.failed)
}
