package control

import (
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/identity"
	"github.com/nereid-serving/nereid/libs/modelfiles"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Bounds of a load, in bytes.
const (
	// maxPart bounds one message's part of a file.
	maxPart = 1 << 20
	// maxConfig bounds a configuration; a bucket takes less.
	maxConfig = 3 << 20
	// maxFiles bounds all files of a load: one call of a gateway brings no more.
	maxFiles = 2 << 30
	// maxInFlight bounds the files of all loads together.
	maxInFlight = 2 * maxFiles
)

// registryTimeout is for how long a load waits in one process for its registry
// to become the leader.
const registryTimeout = 30 * time.Second

// RegistryClient calls the leading registry: it loads and unloads models and
// reads the state of the cluster. It is safe for concurrent use.
type RegistryClient struct{ caller *caller }

// NewRegistryClient makes a client of the holder that the finder finds. It
// connects with the first call.
func NewRegistryClient(f *Finder, o Options) *RegistryClient {
	return &RegistryClient{caller: newCaller(f, identity.Registry, o, registryTimeout)}
}

// Close cancels the calls in flight and refuses others.
func (r *RegistryClient) Close() { r.caller.close() }

// Load loads a model as the registry's Load does in one process, with the same
// errors. It survives the loss of the leader: the next leader gets the same
// load. When ctx ends first Load returns its error, and the load goes on.
func (r *RegistryClient) Load(ctx context.Context, model, config string, files map[string][]byte) error {
	begin := &nereidv1.LoadModel{Operation: rand.Text(), Model: model, Config: config, FilesBytes: size(files)}
	switch {
	case len(config) > maxConfig:
		return errs.New(errs.BodyTooLarge, "the configuration of model '%s' has %d bytes: %d are the most", model, len(config), maxConfig).WithModel(model)
	case begin.FilesBytes > maxFiles:
		return tooLarge(model, begin.FilesBytes)
	case len(files) > modelfiles.MaxLoadFiles:
		return modelfiles.TooManyLoadFiles(model)
	}
	return r.caller.call(ctx, noLeader(model), func(ctx context.Context, conn *grpc.ClientConn) error {
		stream, err := nereidv1.NewRegistryServiceClient(conn).Load(ctx)
		if err != nil {
			return err
		}
		// A part cannot be sent once the call is over: CloseAndRecv returns why.
		_ = send(stream, begin, files)
		_, err = stream.CloseAndRecv()
		return err
	})
}

// Unload unloads a model as the registry's Unload does in one process, with the
// same errors.
func (r *RegistryClient) Unload(ctx context.Context, model string, dependents bool) error {
	request := &nereidv1.UnloadRequest{Operation: rand.Text(), Model: model, Dependents: dependents}
	return r.caller.call(ctx, noLeader(model), func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := nereidv1.NewRegistryServiceClient(conn).Unload(ctx, request)
		return err
	})
}

// SetLog changes settings of the logs of all services as the registry's SetLog does in
// one process, with the same errors.
func (r *RegistryClient) SetLog(ctx context.Context, changes map[string]string) (all obs.LogSettings, err error) {
	err = r.caller.call(ctx, noLeaderForLog, func(ctx context.Context, conn *grpc.ClientConn) error {
		reply, err := nereidv1.NewRegistryServiceClient(conn).SetLog(ctx, &nereidv1.LogSettings{Settings: changes})
		all = obs.LogSettings{Values: reply.GetSettings(), Revision: reply.GetRevision()}
		return err
	})
	return all, err
}

func noLeaderForLog(cause error) error {
	return errs.Wrap(errs.StateUnavailable, cause, "no registry leads to change the settings of the logs: ask again in a moment")
}

// statusTimeout bounds a call for the state of the cluster: the callers of
// Status wait longer, so that they get its error.
const statusTimeout = 15 * time.Second

// Status returns the state of the cluster as the leading registry knows it. When
// none has returned it in time, the error is the last registry's, if one
// answered at all.
func (r *RegistryClient) Status(ctx context.Context) (*nereidv1.ClusterStatus, error) {
	bounded, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	var status *nereidv1.ClusterStatus
	var last error
	unavailable := func(cause error) error {
		if last != nil {
			return last
		}
		return errs.Wrap(errs.StateUnavailable, cause, "no leading registry reports the state of the cluster: see whether a registry runs, and whether NATS does; serving goes on from the last known state")
	}
	err := r.caller.call(bounded, unavailable, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		status, err = callStatus(ctx, conn)
		if answered, decoded := decode(err, "the registry"); answered && err != nil {
			last = decoded
		}
		return err
	})
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		err = unavailable(err)
	}
	return status, err
}

// Status calls a registry or a gateway at an address, leading or not, for the
// state of the cluster, with header as metadata.
func Status(ctx context.Context, address string, header map[string][]string, o Options) (*nereidv1.ClusterStatus, error) {
	conn, err := grpc.NewClient(address, dialOptions(o.TLS)...)
	if err != nil {
		return nil, errs.Wrap(errs.ConfigInvalid, err, "the address %q cannot be used: %v", address, err)
	}
	defer conn.Close()
	md := make(metadata.MD)
	for name, values := range header {
		md.Append(name, values...)
	}
	status, err := callStatus(metadata.NewOutgoingContext(ctx, md), conn)
	if err != nil {
		_, err = decode(err, address)
	}
	return status, err
}

func callStatus(ctx context.Context, conn *grpc.ClientConn) (*nereidv1.ClusterStatus, error) {
	return nereidv1.NewClusterServiceClient(conn).Status(ctx, &nereidv1.StatusRequest{})
}

// noLeader makes the error that a registry in one process returns.
func noLeader(model string) func(error) error {
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
