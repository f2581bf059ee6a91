package control

import (
	"context"
	"errors"
	"io"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelfiles"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Registry loads and unloads models, and changes what all services share.
type Registry interface {
	Load(ctx context.Context, model, config string, files map[string][]byte) error
	Unload(ctx context.Context, model string, dependents bool) error
	// SetLog changes settings of the logs, and returns all that differ from the flags.
	SetLog(ctx context.Context, changes map[string]string) (obs.LogSettings, error)
}

// Cluster reports the state of the whole cluster.
type Cluster interface {
	Status(context.Context) (*nereidv1.ClusterStatus, error)
}

// RegisterRegistry registers the calls of a registry. failed gets
// the errors whose text callers must not see; it is called from any goroutine.
func RegisterRegistry(s grpc.ServiceRegistrar, r Registry, failed func(error)) {
	nereidv1.RegisterRegistryServiceServer(s, &registryServer{registry: r, failed: failed, operations: newOperations()})
}

// RegisterCluster registers the report of the cluster's state; failed is as with
// [RegisterRegistry].
func RegisterCluster(s grpc.ServiceRegistrar, c Cluster, failed func(error)) {
	nereidv1.RegisterClusterServiceServer(s, &clusterServer{cluster: c, failed: failed})
}

type registryServer struct {
	nereidv1.UnimplementedRegistryServiceServer
	registry   Registry
	failed     func(error)
	operations *operations
	inFlight   atomic.Int64 // bytes of the files of all loads
}

// Load implements the call.
func (s *registryServer) Load(stream grpc.ClientStreamingServer[nereidv1.LoadPart, nereidv1.LoadDone]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	begin := first.GetModel()
	if begin == nil {
		return toStatus(stream.Context(), errs.New(errs.InvalidParameter, "a load begins with its model"), s.failed)
	}
	bytes := int64(min(begin.GetFilesBytes(), maxFiles+1))
	if bytes > maxFiles {
		return toStatus(stream.Context(), tooLarge(begin.GetModel(), begin.GetFilesBytes()), s.failed)
	}
	release := func() { s.inFlight.Add(-bytes) }
	if s.inFlight.Add(bytes) > maxInFlight {
		release()
		return toStatus(stream.Context(), errs.New(errs.MemoryFull, "the files of all loads in flight have more than %d bytes: load fewer models at once", maxInFlight).WithModel(begin.GetModel()), s.failed)
	}
	files, err := receive(stream, begin)
	if err != nil {
		release()
		return toStatus(stream.Context(), err, s.failed)
	}
	// An operation goes on, with its files, when its caller is gone.
	err = s.operations.do(stream.Context(), begin.GetOperation(), func(ctx context.Context) error {
		return s.registry.Load(ctx, begin.GetModel(), begin.GetConfig(), files)
	}, release)
	if err != nil {
		return toStatus(stream.Context(), err, s.failed)
	}
	return stream.SendAndClose(&nereidv1.LoadDone{})
}

// receive reads the files, which have no more bytes than the load announced.
func receive(stream grpc.ClientStreamingServer[nereidv1.LoadPart, nereidv1.LoadDone], begin *nereidv1.LoadModel) (map[string][]byte, error) {
	var files map[string][]byte
	var path string
	left := begin.GetFilesBytes()
	for {
		part, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return files, nil
		case err != nil:
			return nil, err
		case part.GetFile() == nil:
			return nil, errs.New(errs.InvalidParameter, "a load names one model").WithModel(begin.GetModel())
		case uint64(len(part.GetFile().GetData())) > left:
			return nil, errs.New(errs.InvalidParameter, "the files have more than the %d bytes that the load announced", begin.GetFilesBytes()).WithModel(begin.GetModel())
		}
		f := part.GetFile()
		left -= uint64(len(f.GetData()))
		if files == nil {
			files = make(map[string][]byte)
		}
		_, again := files[f.GetPath()]
		switch {
		case again && f.GetPath() != path:
			return nil, errs.New(errs.InvalidParameter, "the file %q is given twice", f.GetPath()).WithModel(begin.GetModel())
		case !again && len(files) == modelfiles.MaxLoadFiles:
			return nil, modelfiles.TooManyLoadFiles(begin.GetModel())
		}
		path = f.GetPath()
		files[path] = append(files[path], f.GetData()...)
	}
}

// Unload implements the call.
func (s *registryServer) Unload(ctx context.Context, r *nereidv1.UnloadRequest) (*nereidv1.UnloadDone, error) {
	err := s.operations.do(ctx, r.GetOperation(), func(ctx context.Context) error {
		return s.registry.Unload(ctx, r.GetModel(), r.GetDependents())
	}, func() {})
	return &nereidv1.UnloadDone{}, toStatus(ctx, err, s.failed)
}

// SetLog implements the call.
func (s *registryServer) SetLog(ctx context.Context, r *nereidv1.LogSettings) (*nereidv1.SetLogReply, error) {
	all, err := s.registry.SetLog(ctx, r.GetSettings())
	return &nereidv1.SetLogReply{Settings: all.Values, Revision: all.Revision}, toStatus(ctx, err, s.failed)
}

// toStatus makes the status by which a call fails, and passes to failed a bug,
// whose text the caller does not get.
func toStatus(ctx context.Context, err error, failed func(error)) error {
	if errs.Of(err) == errs.Bug && (errs.Classified(err) || ctx.Err() == nil) {
		failed(err)
	}
	return encode(ctx, err)
}

type clusterServer struct {
	nereidv1.UnimplementedClusterServiceServer
	cluster Cluster
	failed  func(error)
}

// Status implements the call.
func (s *clusterServer) Status(ctx context.Context, _ *nereidv1.StatusRequest) (*nereidv1.ClusterStatus, error) {
	status, err := s.cluster.Status(ctx)
	return status, toStatus(ctx, err, s.failed)
}
