package link_test

import (
	"crypto/tls"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/nereid-serving/nereid/libs/identity"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/serve"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// The port on which a service listens for the others, with the options of every such server, and all
// services on it: each role may call what the table says, and nobody anything else that is served there.
func TestThePortForServicesIsAuthorized(t *testing.T) {
	authority, err := identity.OpenAuthority(filepath.Join(t.TempDir(), "authority"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	files := func(role identity.Role) serve.TLS {
		dir := filepath.Join(t.TempDir(), string(role))
		if _, err := authority.Issue(dir, identity.Identity{Role: role}, nil); err != nil {
			t.Fatal(err)
		}
		return serve.TLS{
			Certificate: filepath.Join(dir, identity.CertificateFile), Key: filepath.Join(dir, identity.KeyFile),
			Roots: filepath.Join(dir, identity.AuthorityFile), Mutual: true,
		}
	}
	failed := func(err error) { t.Error(err) }
	listening, err := files(identity.Scheduler).Config(failed)
	if err != nil {
		t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(link.ServerOptions(listening, zap.NewNop())...)
	nereidv1.RegisterSchedulerServiceServer(s, nereidv1.UnimplementedSchedulerServiceServer{})
	nereidv1.RegisterPoolServiceServer(s, nereidv1.UnimplementedPoolServiceServer{})
	nereidv1.RegisterTensorServiceServer(s, nereidv1.UnimplementedTensorServiceServer{})
	nereidv1.RegisterRegistryServiceServer(s, nereidv1.UnimplementedRegistryServiceServer{})
	nereidv1.RegisterClusterServiceServer(s, nereidv1.UnimplementedClusterServiceServer{})
	nereidv1.RegisterWorkerServiceServer(s, nereidv1.UnimplementedWorkerServiceServer{})
	grpc_health_v1.RegisterHealthServer(s, health.NewServer()) // which no table has
	reflection.Register(s)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	may := make(map[string][]identity.Role)
	for _, c := range identity.Calls() {
		may[c.Method] = c.Roles
	}
	for _, role := range identity.Roles() {
		dialing, err := files(role).Dialer(failed)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(dialing)))
		if err != nil {
			t.Fatal(err)
		}
		for service, info := range s.GetServiceInfo() {
			for _, m := range info.Methods {
				method, want := "/"+service+"/"+m.Name, codes.PermissionDenied
				if slices.Contains(may[method], role) {
					want = codes.Unimplemented // it got through
				}
				if got := call(t, conn, method); got != want {
					t.Errorf("%s calls %s: %v, want %v", role, method, got, want)
				}
			}
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, plain := range []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}))} {
		conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), plain)
		if err != nil {
			t.Fatal(err)
		}
		for method := range may {
			if got := call(t, conn, method); got != codes.Unavailable {
				t.Errorf("a caller without a certificate calls %s: %v", method, got)
			}
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

// call makes a call as a stream, as which a unary one works too, and returns its status.
func call(t *testing.T, conn *grpc.ClientConn, method string) codes.Code {
	t.Helper()
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err == nil {
		_ = stream.SendMsg(new(emptypb.Empty)) // refused meanwhile: the end says why
		_ = stream.CloseSend()
		err = stream.RecvMsg(new(emptypb.Empty))
	}
	return status.Code(err)
}
