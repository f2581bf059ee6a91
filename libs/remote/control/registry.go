package control

import (
	"cmp"
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelfiles"
	"github.com/nereid-serving/nereid/libs/remote/leader"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Bounds of a load, in bytes.
const (
	// maxPart is what one message carries of a file.
	maxPart = 1 << 20
	// maxConfig is what a configuration may have; a bucket takes less.
	maxConfig = 3 << 20
	// maxFiles is what all files of a load may have: as much as one call of a
	// gateway brings.
	maxFiles = 2 << 30
	// maxHeld is what the files of all loads may have together.
	maxHeld = 2 * maxFiles
)

// registryPatience is what a load in one process has for its registry to lead.
const registryPatience = 30 * time.Second

// Registry has the leading registry load and unload models, and tell of the
// cluster. It is safe for concurrent use.
type Registry struct{ caller *caller }

// NewRegistry makes a client of the holder that the finder finds. It connects
// when it is used.
func NewRegistry(f *leader.Finder, o Options) *Registry {
	return &Registry{caller: newCaller(f, o, registryPatience)}
}

// Close ends the calls under way and refuses others.
func (r *Registry) Close() { r.caller.close() }

// Load loads a model as the registry's Load does in one process, with the same
// errors. It outlives a lost leader: the next one is given the same again. When
// ctx ends first its error is returned, and the load goes on.
func (r *Registry) Load(ctx context.Context, model, config string, files map[string][]byte) error {
	begin := &nereidv1.LoadModel{Operation: rand.Text(), Model: model, Config: config, FilesBytes: size(files)}
	switch {
	case len(config) > maxConfig:
		return errs.New(errs.BodyTooLarge, "the configuration of model '%s' has %d bytes: %d are the most", model, len(config), maxConfig).WithModel(model)
	case begin.FilesBytes > maxFiles:
		return tooLarge(model, begin.FilesBytes)
	case len(files) > modelfiles.MaxGiven:
		return modelfiles.TooManyGiven(model)
	}
	return r.caller.call(ctx, nobodyLeads(model), func(ctx context.Context, conn *grpc.ClientConn) error {
		stream, err := nereidv1.NewRegistryServiceClient(conn).Load(ctx)
		if err != nil {
			return err
		}
		// A part that cannot be sent means that the call is over: what
		// CloseAndRecv says is why.
		_ = send(stream, begin, files)
		_, err = stream.CloseAndRecv()
		return err
	})
}

// Unload takes a model out of service as the registry's Unload does in one
// process, with the same errors.
func (r *Registry) Unload(ctx context.Context, model string, dependents bool) error {
	request := &nereidv1.UnloadRequest{Operation: rand.Text(), Model: model, Dependents: dependents}
	return r.caller.call(ctx, nobodyLeads(model), func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := nereidv1.NewRegistryServiceClient(conn).Unload(ctx, request)
		return err
	})
}

// statusPatience is for how long a look at the cluster may take: less than who
// asks waits, so that it is told what is amiss.
const statusPatience = 15 * time.Second

// Status asks the leading registry for the state of the cluster. When none has
// told within some seconds, the error is what the last one said instead.
func (r *Registry) Status(ctx context.Context) (*nereidv1.ClusterStatus, error) {
	asking, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	var status *nereidv1.ClusterStatus
	var said error
	nobody := func(cause error) error {
		return cmp.Or(said, error(errs.Wrap(errs.StateUnavailable, cause, "no registry leads to tell of the cluster: see whether one runs, and whether NATS does; serving goes on from the last known state")))
	}
	err := r.caller.call(asking, nobody, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		status, err = askStatus(ctx, conn)
		if answered, decoded := decode(err, "the registry"); answered && err != nil {
			said = decoded
		}
		return err
	})
	if err != nil && asking.Err() != nil && ctx.Err() == nil {
		err = nobody(err)
	}
	return status, err
}

// Status asks a registry or a gateway at an address, leading or not, for the
// state of the cluster, with header as metadata.
func Status(ctx context.Context, address string, header map[string][]string, o Options) (*nereidv1.ClusterStatus, error) {
	conn, err := grpc.NewClient(address, dialOptions(o.TLS)...)
	if err != nil {
		return nil, errs.Wrap(errs.ConfigInvalid, err, "the address %q cannot be dialled: %v", address, err)
	}
	defer conn.Close()
	md := make(metadata.MD)
	for name, values := range header {
		md.Append(name, values...)
	}
	status, err := askStatus(metadata.NewOutgoingContext(ctx, md), conn)
	if err != nil {
		_, err = decode(err, address)
	}
	return status, err
}

// askStatus makes the call.
func askStatus(ctx context.Context, conn *grpc.ClientConn) (*nereidv1.ClusterStatus, error) {
	return nereidv1.NewClusterServiceClient(conn).Status(ctx, &nereidv1.StatusRequest{})
}

// nobodyLeads is what a registry in one process says.
func nobodyLeads(model string) func(error) error {
	return func(cause error) error {
		return errs.Wrap(errs.StateUnavailable, cause, "no registry leads to work on model '%s': look at the repository index, and ask again in a moment", model).WithModel(model)
	}
}

func tooLarge(model string, bytes uint64) error {
	return errs.New(errs.BodyTooLarge, "the files for model '%s' have %d bytes: %d are the most, put larger models into the repository", model, bytes, maxFiles).WithModel(model)
}

func size(files map[string][]byte) (bytes uint64) {
	for _, data := range files {
		bytes += uint64(len(data))
	}
	return bytes
}

func send(stream grpc.ClientStreamingClient[nereidv1.LoadPart, nereidv1.LoadDone], begin *nereidv1.LoadModel, files map[string][]byte) error {
	if err := stream.Send(&nereidv1.LoadPart{Part: &nereidv1.LoadPart_Model{Model: begin}}); err != nil {
		return err
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if err := sendFile(stream, path, files[path]); err != nil {
			return err
		}
	}
	return nil
}

// sendFile sends one part at least: a file may be empty.
func sendFile(stream grpc.ClientStreamingClient[nereidv1.LoadPart, nereidv1.LoadDone], path string, data []byte) error {
	for first := true; first || len(data) > 0; first = false {
		n := min(len(data), maxPart)
		part := &nereidv1.FilePart{Path: path, Data: data[:n]}
		if err := stream.Send(&nereidv1.LoadPart{Part: &nereidv1.LoadPart_File{File: part}}); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}
