package identity_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/nereid-serving/nereid/libs/identity"
	"github.com/nereid-serving/nereid/libs/serve"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is an authority with the files of the processes that it signs.
type cluster struct {
	t         *testing.T
	dir       string
	authority *identity.Authority
	logged    *observer.ObservedLogs // what servers log
	log       *zap.Logger
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	dir := t.TempDir()
	authority, err := identity.OpenAuthority(filepath.Join(dir, "authority"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	core, logged := observer.New(zap.InfoLevel)
	return &cluster{t, dir, authority, logged, zap.New(core)}
}

// files returns the files of a process, as its settings name them.
func (c *cluster) files(i identity.Identity) serve.TLS {
	c.t.Helper()
	dir := filepath.Join(c.dir, string(i.Role), i.ID)
	if _, err := c.authority.Issue(dir, i, nil); err != nil {
		c.t.Fatal(err)
	}
	return serve.TLS{
		Certificate: filepath.Join(dir, identity.CertificateFile), Key: filepath.Join(dir, identity.KeyFile),
		Roots: filepath.Join(dir, identity.AuthorityFile), Mutual: true,
	}
}

func (c *cluster) dialer(i identity.Identity) *tls.Config {
	c.t.Helper()
	config, err := c.files(i).Dialer(func(err error) { c.t.Error(err) })
	if err != nil {
		c.t.Fatal(err)
	}
	return config
}

// serve serves with a process's certificate until the test's end.
func (c *cluster) serve(i identity.Identity, register func(grpc.ServiceRegistrar)) (address string) {
	c.t.Helper()
	config, err := c.files(i).Config(func(err error) { c.t.Error(err) })
	if err != nil {
		c.t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(c.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	server := grpc.NewServer(append(identity.ServerOptions(c.log), grpc.Creds(credentials.NewTLS(config)))...)
	register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	c.t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			c.t.Error(err)
		}
	})
	return l.Addr().String()
}

func (c *cluster) dial(address string, config *tls.Config) *grpc.ClientConn {
	c.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// everything registers all services, none of whose methods is implemented.
func everything(s grpc.ServiceRegistrar) {
	nereidv1.RegisterSchedulerServiceServer(s, nereidv1.UnimplementedSchedulerServiceServer{})
	nereidv1.RegisterPoolServiceServer(s, nereidv1.UnimplementedPoolServiceServer{})
	nereidv1.RegisterTensorServiceServer(s, nereidv1.UnimplementedTensorServiceServer{})
	nereidv1.RegisterRegistryServiceServer(s, nereidv1.UnimplementedRegistryServiceServer{})
	nereidv1.RegisterClusterServiceServer(s, nereidv1.UnimplementedClusterServiceServer{})
	nereidv1.RegisterRegionServiceServer(s, nereidv1.UnimplementedRegionServiceServer{})
	nereidv1.RegisterWorkerServiceServer(s, nereidv1.UnimplementedWorkerServiceServer{})
}

// methods lists the methods of all services of the contracts.
func methods() []string {
	var list []string
	protoregistry.GlobalFiles.RangeFilesByPackage("nereid.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				list = append(list, "/"+string(s.FullName())+"/"+string(s.Methods().Get(j).Name()))
			}
		}
		return true
	})
	slices.Sort(list)
	return list
}

// call makes a call and returns its status; every method is called as a stream,
// as which a unary one works too.
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

// Every method is called with the certificate of every role. What is expected is
// written here once more, so that a change of the table is a change of two files.
func TestWhoMayCallWhat(t *testing.T) {
	want := map[string]string{
		"SchedulerService/Submit": "gateway",
		"SchedulerService/Work":   "worker",
		"PoolService/Statistics":  "gateway",
		"PoolService/Queues":      "registry",
		"TensorService/Exchange":  "gateway worker",
		"RegionService/Share":     "gateway",
		"WorkerService/Complete":  "registry",
		"RegistryService/Load":    "gateway",
		"RegistryService/Unload":  "gateway",
		"RegistryService/SetLog":  "gateway",
		"ClusterService/Status":   "gateway operator",
	}
	c := newCluster(t)
	address := c.serve(identity.Identity{Role: identity.Scheduler}, everything)
	for _, role := range identity.Roles() {
		conn := c.dial(address, c.dialer(identity.Identity{Role: role}))
		for _, method := range methods() {
			code := codes.PermissionDenied
			if slices.Contains(strings.Fields(want[strings.TrimPrefix(method, "/nereid.v1.")]), string(role)) {
				code = codes.Unimplemented // it got through
			}
			if got := call(t, conn, method); got != code {
				t.Errorf("%s calls %s: %v, want %v", role, method, got, code)
			}
		}
	}
}

// A caller that is refused tries again and again, and the log names it once for
// each method.
func TestRefusedCallersAreLoggedOnce(t *testing.T) {
	c := newCluster(t)
	address := c.serve(identity.Identity{Role: identity.Registry}, everything)
	for _, i := range []identity.Identity{{Role: identity.Worker}, {Role: identity.Worker, ID: "w1"}, {Role: identity.Gateway}} {
		conn := c.dial(address, c.dialer(i))
		for range 3 {
			call(t, conn, nereidv1.RegistryService_Load_FullMethodName)
			call(t, conn, nereidv1.RegistryService_Unload_FullMethodName)
		}
	}
	var got []string
	for _, e := range c.logged.All() {
		f := e.ContextMap()
		if !strings.Contains(e.Message, "nereid credentials") || f["address"] == "" || f["reason"] != "role_forbidden" ||
			f["error"] != "the role worker may not call "+fmt.Sprint(f["method"]) {
			t.Errorf("logged %s %v", e.Message, f)
		}
		got = append(got, fmt.Sprint(f["caller"], " ", f["method"]))
	}
	want := []string{
		"spiffe://nereid/worker nereid.v1.RegistryService/Load", "spiffe://nereid/worker nereid.v1.RegistryService/Unload",
		"spiffe://nereid/worker/w1 nereid.v1.RegistryService/Load", "spiffe://nereid/worker/w1 nereid.v1.RegistryService/Unload",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("logged (-want +got):\n%s", diff)
	}
}

func TestTheTableHasEveryMethod(t *testing.T) {
	var listed []string
	for _, c := range identity.Calls() {
		if len(c.Roles) == 0 {
			t.Errorf("%s may be called by no one", c.Method)
		}
		listed = append(listed, c.Method)
	}
	slices.Sort(listed)
	if !slices.Equal(listed, methods()) {
		t.Errorf("the table has %v, want %v", listed, methods())
	}
}

// A server is taken for the role that its certificate says: a worker cannot
// stand for the registry.
func TestServersHaveTheRoleThatIsCalled(t *testing.T) {
	c := newCluster(t)
	gateway := c.dialer(identity.Identity{Role: identity.Gateway})
	for _, role := range identity.Roles() {
		address := c.serve(identity.Identity{Role: role}, everything)
		want := codes.Unavailable
		if role == identity.Registry {
			want = codes.Unimplemented
		}
		conn := c.dial(address, identity.Expect(gateway, identity.Registry))
		if got := call(t, conn, nereidv1.RegistryService_Load_FullMethodName); got != want {
			t.Errorf("a %s as the registry: %v, want %v", role, got, want)
		}
	}
	if identity.Expect(nil, identity.Registry) != nil {
		t.Error("plain text became TLS")
	}
}

// Another authority's certificate is no identity, whatever it says.
func TestAnotherAuthorityIsRefused(t *testing.T) {
	c, other := newCluster(t), newCluster(t)
	address := c.serve(identity.Identity{Role: identity.Registry}, everything)
	conn := c.dial(address, other.dialer(identity.Identity{Role: identity.Gateway}))
	if got := call(t, conn, nereidv1.RegistryService_Load_FullMethodName); got != codes.Unavailable {
		t.Errorf("Load = %v", got)
	}
}
