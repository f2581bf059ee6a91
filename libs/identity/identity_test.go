package identity_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/identity"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/export"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/plane/schedule"
	"github.com/nereid-serving/nereid/libs/tensor"
)

func TestIdentitiesInCertificates(t *testing.T) {
	for text, want := range map[string]identity.Identity{
		"spiffe://nereid/worker":                              {Role: identity.Worker},
		"spiffe://nereid/worker/w1":                           {Role: identity.Worker, ID: "w1"},
		"https://example.com/ spiffe://example.com/gateway/g": {Role: identity.Gateway, ID: "g"},
		"":                                     {},
		"https://example.com/worker":           {},
		"spiffe://nereid/":                     {},
		"spiffe://nereid/admin":                {},
		"spiffe://nereid/worker/a/b":           {},
		"spiffe://nereid/ns/default/sa/worker": {},
		"spiffe://nereid/worker spiffe://nereid/registry": {},
	} {
		var c x509.Certificate
		for _, field := range strings.Fields(text) {
			u, err := url.Parse(field)
			if err != nil {
				t.Fatal(err)
			}
			c.URIs = append(c.URIs, u)
		}
		got, err := identity.Parse(&c)
		refused := want == identity.Identity{}
		if got != want || (errs.Of(err) == errs.RoleForbidden) != refused || (err != nil) != refused {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
}

// from returns the context of a call by the holder of a certificate.
func from(uri string) context.Context {
	u, _ := url.Parse(uri)
	info := credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{{URIs: []*url.URL{u}}}}}
	return peer.NewContext(context.Background(), &peer.Peer{AuthInfo: info})
}

func TestAProcessSpeaksForItself(t *testing.T) {
	of := func(ids map[uint64]string) identity.Owner {
		return func(incarnation uint64) (string, bool) {
			id, known := ids[incarnation]
			return id, known
		}
	}
	owners := identity.Owners{
		identity.Worker:  of(map[uint64]string{7: "w1", 8: "w2"}),
		identity.Gateway: of(map[uint64]string{6: "w1"}),
	}
	for name, tt := range map[string]struct {
		ctx         context.Context
		id          string
		incarnation uint64
		refused     bool
	}{
		"itself":                           {from("spiffe://nereid/worker/w1"), "w1", 7, false},
		"another id":                       {from("spiffe://nereid/worker/w1"), "w2", 8, true},
		"another's incarnation":            {from("spiffe://nereid/worker/w1"), "w1", 8, true},
		"an incarnation not known yet":     {from("spiffe://nereid/worker/w1"), "w1", 9, false},
		"a certificate that all share":     {from("spiffe://nereid/worker"), "w2", 8, false},
		"another role's, and all share":    {from("spiffe://nereid/worker"), "w1", 6, true},
		"another role's of the same id":    {from("spiffe://nereid/worker/w1"), "w1", 6, true},
		"a certificate without a role":     {from("https://nereid/worker"), "w1", 7, true},
		"plain text":                       {context.Background(), "w2", 7, false},
		"plain text, as grpc has a peer":   {peer.NewContext(context.Background(), &peer.Peer{}), "w2", 7, false},
		"a connection with no certificate": {peer.NewContext(context.Background(), &peer.Peer{AuthInfo: credentials.TLSInfo{}}), "w1", 7, true},
	} {
		err := identity.CheckIncarnation(tt.ctx, tt.id, tt.incarnation, owners)
		if (err != nil) != tt.refused || (tt.refused && errs.Of(err) != errs.RoleForbidden) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := identity.CheckIncarnation(from("spiffe://nereid/worker/w1"), "w1", 8, nil); err != nil {
		t.Errorf("without an owner: %v", err)
	}
}

// attached is a scheduler that reports who connects.
type attached struct {
	schedule.Backend
	workers chan uint64
}

func (a attached) Attach(worker uint64, _ infer.Held, _ infer.Executor) { a.workers <- worker }
func (a attached) Disconnect(uint64, []*infer.Batch)                    {}

// serveStreams serves streams with a role's certificate until the test's end.
func (c *cluster) serveStreams(role identity.Role, register func(grpc.ServiceRegistrar)) (address string) {
	c.t.Helper()
	config, err := c.files(identity.Identity{Role: role}).Config(func(err error) { c.t.Error(err) })
	if err != nil {
		c.t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(c.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	listener := grpc.NewServer(link.ServerOptions(config, c.log)...)
	register(listener)
	served := make(chan error, 1)
	go func() { served <- listener.Serve(l) }()
	c.t.Cleanup(func() {
		listener.Stop()
		<-served
	})
	return l.Addr().String()
}

// Gateways and workers exchange tensors with a worker, each as its own role and
// itself.
func TestTensorsAreExchangedAsOneself(t *testing.T) {
	c := newCluster(t)
	owner := func(known uint64, id string) identity.Owner {
		return func(incarnation uint64) (string, bool) { return id, incarnation == known }
	}
	at := export.NewEndpoint(export.Config{
		ID: "w2", Pool: tensor.NewPool(0), Owners: identity.Owners{identity.Worker: owner(7, "w1"), identity.Gateway: owner(6, "g1")},
	})
	at.Introduce(8)
	defer at.Close()
	address := c.serveStreams(identity.Worker, at.Register)
	for _, tt := range []struct {
		as          identity.Identity
		id          string
		incarnation uint64
		refused     bool
	}{
		{identity.Identity{Role: identity.Worker, ID: "w1"}, "w1", 7, false},
		{identity.Identity{Role: identity.Worker}, "w1", 7, false},
		{identity.Identity{Role: identity.Gateway, ID: "g1"}, "g1", 6, false},
		{identity.Identity{Role: identity.Worker, ID: "w1"}, "w1", 6, true},
		{identity.Identity{Role: identity.Worker}, "g1", 6, true},
		{identity.Identity{Role: identity.Gateway}, "w1", 7, true},
		{identity.Identity{Role: identity.Scheduler}, "s", 5, true},
	} {
		from := export.NewEndpoint(export.Config{ID: tt.id, Pool: tensor.NewPool(0)})
		from.Introduce(tt.incarnation)
		ctx, cancel := context.WithCancel(t.Context())
		secured := identity.Expect(c.dialer(tt.as), identity.Worker)
		session, err := from.Dial(ctx, link.Peer{Address: address, TLS: secured}, new(export.Progress))
		if refused := errs.Of(link.Cause(err)) == errs.RoleForbidden; refused != tt.refused || !refused && err != nil {
			t.Errorf("%v as %s, incarnation %d: %v", tt.as, tt.id, tt.incarnation, err)
		}
		cancel()
		if err == nil {
			_ = session.Run(ctx) // ends at once
		}
		from.Close()
	}
}

// A worker's certificate opens the stream of that worker's own incarnation
// alone.
func TestAWorkerConnectsAsItself(t *testing.T) {
	c := newCluster(t)
	server := schedule.NewServer(schedule.Config{
		ID: "s", Pool: "default", Clock: mono.New(), Log: zap.NewNop(),
		Owners: identity.Owners{identity.Worker: func(incarnation uint64) (string, bool) {
			return map[uint64]string{7: "w1", 8: "w2"}[incarnation], incarnation == 7 || incarnation == 8
		}},
	})
	scheduler := attached{workers: make(chan uint64, 8)}
	server.Serve(1, scheduler)
	defer server.Stop()
	address := c.serveStreams(identity.Scheduler, server.Register)
	secured := c.dialer(identity.Identity{Role: identity.Worker, ID: "w1"})
	for _, tt := range []struct {
		id          string
		incarnation uint64
		refused     bool
	}{{"w2", 8, true}, {"w1", 8, true}, {"w2", 7, true}, {"w1", 7, false}} {
		d := schedule.Dialler{Self: schedule.Identity{ID: tt.id, Incarnation: tt.incarnation}, Clock: mono.New()}
		session, err := d.Worker(t.Context(), link.Peer{Address: address, TLS: secured}, infer.Held{}, nil)
		if (err != nil) != tt.refused || (tt.refused && errs.Of(err) != errs.RoleForbidden) {
			t.Errorf("as %s, incarnation %d: %v", tt.id, tt.incarnation, err)
		}
		if err == nil {
			if got := <-scheduler.workers; got != tt.incarnation {
				t.Errorf("the scheduler has met the incarnation %d, want %d", got, tt.incarnation)
			}
			session.Close()
			<-session.Done()
		}
	}
	refused := c.logged.FilterField(zap.String("caller", "spiffe://nereid/worker/w1")).FilterField(zap.String("method", "nereid.v1.SchedulerService/Work"))
	if c.logged.Len() != 1 || refused.Len() != 1 || !strings.Contains(fmt.Sprint(refused.All()[0].ContextMap()["error"]), `does not speak for "w2"`) {
		t.Errorf("logged %v", c.logged.All())
	}
}
