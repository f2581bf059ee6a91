package identity

import (
	"context"
	"crypto/x509"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Call is a method between services, and the roles that may call it.
type Call struct {
	// Method is the full name, as gRPC has it.
	Method string
	Roles  []Role
}

// Calls is the table of methods and the roles that may call them. Nobody may call a method that
// is not in it.
func Calls() []Call {
	return []Call{
		{"/nereid.v1.SchedulerService/Submit", []Role{Gateway}},
		{"/nereid.v1.SchedulerService/Work", []Role{Worker}},
		{"/nereid.v1.PoolService/Statistics", []Role{Gateway}},
		{"/nereid.v1.PoolService/Queues", []Role{Registry}},
		{"/nereid.v1.TensorService/Exchange", []Role{Gateway, Worker}},
		{"/nereid.v1.RegionService/Share", []Role{Gateway}},
		{"/nereid.v1.WorkerService/Complete", []Role{Registry}},
		{"/nereid.v1.RegistryService/Load", []Role{Gateway}},
		{"/nereid.v1.RegistryService/Unload", []Role{Gateway}},
		{"/nereid.v1.RegistryService/SetLog", []Role{Gateway}},
		{"/nereid.v1.ClusterService/Status", []Role{Gateway, Operator}},
	}
}

// ServerOptions are those of a gRPC server that answers the calls of the table:
// a caller whose role may not make a call gets PERMISSION_DENIED. The log gets one
// line for each caller and method that the server refuses, by the table or, as
// with [CheckID], by itself.
func ServerOptions(log *zap.Logger) []grpc.ServerOption {
	allowed := make(map[string][]Role)
	for _, c := range Calls() {
		allowed[c.Method] = c.Roles
	}
	refused := refusals{log: log, logged: make(map[refusal]bool)}
	answer := func(ctx context.Context, method string, handle func() error) error {
		i, secured, err := FromContext(ctx)
		switch {
		case !secured:
			return handle()
		case err == nil && !slices.Contains(allowed[method], i.Role):
			err = errs.New(errs.RoleForbidden, "the role %s may not call %s", i.Role, strings.TrimPrefix(method, "/"))
		}
		if err == nil {
			err = handle()
		} else {
			err = status.New(codes.Code(errs.RoleForbidden.GRPC()), err.Error()).Err()
		}
		if status.Code(err) == codes.PermissionDenied {
			refused.note(ctx, method, err)
		}
		return err
	}
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (response any, err error) {
			err = answer(ctx, info.FullMethod, func() (err error) {
				response, err = handle(ctx, request)
				return err
			})
			return response, err
		}),
		grpc.ChainStreamInterceptor(func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			return answer(stream.Context(), info.FullMethod, func() error { return handle(server, stream) })
		}),
	}
}

// refusal is a caller, by its certificate, and a method that it was refused.
type refusal struct{ caller, method string }

// maxRefusals bounds how many refusals are remembered.
const maxRefusals = 1024

// refusals logs each refusal once: a refused process tries again and again.
type refusals struct {
	log *zap.Logger

	mu     sync.Mutex
	logged map[refusal]bool // guarded by mu
}

func (r *refusals) note(ctx context.Context, method string, err error) {
	from, _ := peer.FromContext(ctx)
	what := refusal{method: strings.TrimPrefix(method, "/")}
	if info, ok := from.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
		what.caller = name(info.State.PeerCertificates[0])
	}
	r.mu.Lock()
	known := r.logged[what]
	if len(r.logged) == maxRefusals {
		clear(r.logged)
	}
	r.logged[what] = true
	r.mu.Unlock()
	if !known {
		r.log.Warn("refused a call: give each process the certificate of its own role, as nereid credentials makes them",
			zap.String("caller", what.caller), zap.Stringer("address", from.Addr), zap.String("method", what.method),
			zap.String("reason", string(errs.RoleForbidden)), zap.String("error", status.Convert(err).Message()))
	}
}

// name is what a certificate says of its owner, to people.
func name(c *x509.Certificate) string {
	if len(c.URIs) > 0 {
		return c.URIs[0].String()
	}
	return c.Subject.String()
}
