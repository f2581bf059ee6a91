package control_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelfiles"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/plane/link"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for; no test measures it.
const patience = 2 * time.Minute

// role is a real store with a role to hold.
type role struct {
	t       *testing.T
	leaders *bus.Bucket[*nereidv1.LeaderValue]
	finder  *control.Finder
}

func newRole(t *testing.T, name string) *role {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Config{Lease: patience})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.EnsureBuckets(t.Context()); err != nil {
		t.Fatal(err)
	}
	leaders, err := bus.NewBucket(b, bus.Leaders, bus.Values[*nereidv1.LeaderValue]())
	if err != nil {
		t.Fatal(err)
	}
	finder := control.NewFinder(b, name)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- finder.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the finder: %v", err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return &role{t: t, leaders: leaders, finder: finder}
}

// give makes a process the holder of the role, whoever holds it, and returns when
// callers know.
func (r *role) give(id, address string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	lease, err := r.leaders.Acquire(ctx, bus.Claim[*nereidv1.LeaderValue]{
		Key: r.finder.Role(),
		Value: func(epoch uint64) *nereidv1.LeaderValue {
			return &nereidv1.LeaderValue{Schema: nereidv1.Schema, Holder: id, Epoch: epoch, Address: address}
		},
		Replace: func(*nereidv1.LeaderValue) bool { return true },
	})
	if err != nil {
		r.t.Fatal(err)
	}
	for {
		holder, changed := r.finder.Current()
		if holder.Epoch == lease.Epoch() {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			r.t.Fatalf("the role is still known as %v's", holder)
		}
	}
}

// serve serves at an address of the network until stop.
func serve(t *testing.T, network, address string, register func(grpc.ServiceRegistrar)) (at string, stop func()) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(link.ServerOptions(nil, nil)...) // those of services: callers ping
	register(s)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	stop = sync.OnceFunc(func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(stop)
	if network == "unix" {
		return "unix:" + address, stop
	}
	return l.Addr().String(), stop
}

// asked is what a registry was asked for.
type asked struct {
	Verb, Model, Config string
	Files               map[string][]byte
	Dependents          bool
	Log                 map[string]string
}

// models is a registry that does what act says.
type models struct {
	act func(context.Context) error

	mu    sync.Mutex
	calls []asked // guarded by mu
}

func (m *models) Load(ctx context.Context, model, config string, files map[string][]byte) error {
	m.note(asked{Verb: "load", Model: model, Config: config, Files: files})
	return m.act(ctx)
}

func (m *models) Unload(ctx context.Context, model string, dependents bool) error {
	m.note(asked{Verb: "unload", Model: model, Dependents: dependents})
	return m.act(ctx)
}

func (m *models) SetLog(ctx context.Context, changes map[string]string) (obs.LogSettings, error) {
	m.note(asked{Verb: "set log", Log: changes})
	return obs.LogSettings{Values: changes, Revision: 7}, m.act(ctx)
}

func (m *models) note(a asked) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls = append(m.calls, a)
}

func (m *models) asked() []asked {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls
}

func (m *models) register(s grpc.ServiceRegistrar) { control.RegisterRegistry(s, m, func(error) {}) }

func (r *role) registry(o control.Options) *control.RegistryClient {
	c := control.NewRegistryClient(r.finder, o)
	r.t.Cleanup(c.Close)
	return c
}

func done(context.Context) error { return nil }

func TestCallsArriveWhole(t *testing.T) {
	r := newRole(t, control.RegistryRole)
	files := map[string][]byte{
		"1/model.onnx": bytes.Repeat([]byte("weights."), 400_000), "1/empty": {}, "labels.txt": []byte("a\nb\n"),
	}
	for network, address := range map[string]string{"tcp": "127.0.0.1:0", "unix": filepath.Join(t.TempDir(), "registry")} {
		m := &models{act: done}
		at, stop := serve(t, network, address, m.register)
		r.give("registry-"+network, at)
		client := r.registry(control.Options{})
		if err := errors.Join(client.Load(t.Context(), "digits", `{"backend":"echo"}`, files), client.Unload(t.Context(), "digits", true)); err != nil {
			t.Fatal(err)
		}
		changed, err := client.SetLog(t.Context(), map[string]string{"log_info": "false"})
		if err != nil || changed.Revision != 7 || changed.Values["log_info"] != "false" {
			t.Errorf("SetLog = %+v, %v", changed, err)
		}
		want := []asked{
			{Verb: "load", Model: "digits", Config: `{"backend":"echo"}`, Files: files},
			{Verb: "unload", Model: "digits", Dependents: true},
			{Verb: "set log", Log: map[string]string{"log_info": "false"}},
		}
		same := cmp.Comparer(bytes.Equal)
		if diff := cmp.Diff(want, m.asked(), same); diff != "" {
			t.Errorf("over %s the registry was asked (-want +got):\n%s", network, diff)
		}
		stop()
	}
}

func TestErrorsAreThoseOfOneProcess(t *testing.T) {
	r := newRole(t, control.RegistryRole)
	var failure error
	var seen error
	m := &models{act: func(context.Context) error { return failure }}
	at, _ := serve(t, "tcp", "127.0.0.1:0", func(s grpc.ServiceRegistrar) {
		control.RegisterRegistry(s, m, func(err error) { seen = err })
	})
	r.give("a", at)
	client := r.registry(control.Options{})
	for _, want := range []*errs.Error{
		errs.New(errs.LoadFailed, "load failed for model 'm': no version is available").WithModel("m"),
		errs.New(errs.LoadConflict, "a related model 'm' to a load/unload request is currently loading or unloading").WithModel("m"),
		errs.New(errs.QueueFull, "come back").WithRetry(1500 * time.Microsecond),
	} {
		failure = want
		if diff := cmp.Diff(want, errs.From(client.Load(t.Context(), "m", "", nil))); diff != "" {
			t.Errorf("the error (-want +got):\n%s", diff)
		}
	}
	failure = errors.New("a secret of the registry")
	err := client.Unload(t.Context(), "m", false)
	if errs.Of(err) != errs.Bug || errors.Is(err, failure) || bytes.Contains([]byte(err.Error()), []byte("secret")) {
		t.Errorf("a bug came as %v", err)
	}
	if !errors.Is(seen, failure) {
		t.Errorf("the registry's log has %v, want the bug", seen)
	}
}

func TestWithoutALeaderCallsFail(t *testing.T) {
	r := newRole(t, control.RegistryRole)
	client := r.registry(control.Options{Timeout: 10 * time.Millisecond})
	want := "no registry leads to work on model 'm': look at the repository index, and ask again in a moment"
	if e := errs.From(client.Load(t.Context(), "m", "", nil)); e.Reason != errs.StateUnavailable || e.Msg != want || e.Model != "m" {
		t.Errorf("Load = %v, want %s", e, want)
	}
	r.give("gone", "127.0.0.1:1")
	if e := errs.From(client.Unload(t.Context(), "m", false)); e.Reason != errs.StateUnavailable || e.Msg != want || e.Err == nil {
		t.Errorf("Unload = %v, want %s with a cause", e, want)
	}
	if _, err := client.Status(t.Context()); errs.Of(err) != errs.StateUnavailable {
		t.Errorf("Status = %v", err)
	}
}

// cluster is a registry that does not know the state of the cluster.
type cluster struct{ failure error }

func (c cluster) Status(context.Context) (*nereidv1.ClusterStatus, error) { return nil, c.failure }

func TestStatusReturnsTheRegistrysOwnError(t *testing.T) {
	r := newRole(t, control.RegistryRole)
	failure := errs.New(errs.StateUnavailable, "the store has not answered")
	at, _ := serve(t, "tcp", "127.0.0.1:0", func(s grpc.ServiceRegistrar) {
		control.RegisterCluster(s, cluster{failure}, func(err error) { t.Errorf("logged: %v", err) })
	})
	r.give("a", at)
	client := r.registry(control.Options{Timeout: 10 * time.Millisecond})
	if _, err := client.Status(t.Context()); errs.Of(err) != errs.StateUnavailable || errs.From(err).Msg != failure.Msg {
		t.Errorf("Status = %v, want %v", err, failure)
	}
}

// waiting is a registry whose calls last until the caller has gone.
type waiting struct {
	called  chan struct{}
	failure error
}

func (w waiting) Status(ctx context.Context) (*nereidv1.ClusterStatus, error) {
	close(w.called)
	<-ctx.Done()
	return nil, w.failure
}

func TestABugIsLoggedThoughTheCallerHasGone(t *testing.T) {
	r := newRole(t, control.RegistryRole)
	called, logged := make(chan struct{}), make(chan error, 1)
	at, _ := serve(t, "tcp", "127.0.0.1:0", func(s grpc.ServiceRegistrar) {
		control.RegisterCluster(s, waiting{called, errs.New(errs.Bug, "the count is off")}, func(err error) { logged <- err })
	})
	r.give("a", at)
	client := r.registry(control.Options{Timeout: time.Minute})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-called; cancel() }()
	if _, err := client.Status(ctx); err == nil {
		t.Error("a call that was canceled succeeded")
	}
	if err := <-logged; errs.Of(err) != errs.Bug || !errs.Classified(err) {
		t.Errorf("logged %v, want the bug", err)
	}
}

// A leader that loses leadership says so, dies, or does not answer any more. In
// each case the next leader gets the same load.
func TestALoadSurvivesTheLossOfTheLeader(t *testing.T) {
	for _, tt := range []struct {
		name string
		lost func(stop func())
	}{
		{"that steps down", nil},
		{"that dies", func(stop func()) { stop() }},
		{"that hangs", func(func()) {}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRole(t, control.RegistryRole)
			started, end := make(chan struct{}, 1), make(chan struct{})
			first := &models{act: func(ctx context.Context) error {
				select {
				case started <- struct{}{}:
				default: // asked again
				}
				if tt.lost == nil {
					return errs.New(errs.StateUnavailable, "another leads")
				}
				<-end
				return ctx.Err()
			}}
			at, stop := serve(t, "tcp", "127.0.0.1:0", first.register)
			r.give("first", at)
			client := r.registry(control.Options{})
			loaded := make(chan error, 1)
			files := map[string][]byte{"1/model.onnx": []byte("weights")}
			go func() { loaded <- client.Load(t.Context(), "m", "{}", files) }()
			<-started
			if tt.lost != nil {
				tt.lost(func() { stop(); close(end) }) // else it might answer before it dies
			}
			second := &models{act: done}
			at, _ = serve(t, "tcp", "127.0.0.1:0", second.register)
			r.give("second", at)
			if err := <-loaded; err != nil {
				t.Errorf("Load = %v", err)
			}
			if diff := cmp.Diff([]asked{{Verb: "load", Model: "m", Config: "{}", Files: files}}, second.asked()); diff != "" {
				t.Errorf("the second was asked (-want +got):\n%s", diff)
			}
			if tt.name == "that hangs" {
				close(end)
			}
		})
	}
}

// relay stands before a server; cut ends the connections through it.
type relay struct {
	t     *testing.T
	l     net.Listener
	to    string
	mu    sync.Mutex
	conns []net.Conn // guarded by mu
	wait  sync.WaitGroup
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{t: t, l: l, to: to}
	r.wait.Go(r.accept)
	t.Cleanup(func() {
		_ = l.Close()
		r.cut()
		r.wait.Wait()
	})
	return r
}

func (r *relay) accept() {
	for {
		from, err := r.l.Accept()
		if err != nil {
			return
		}
		to, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", r.to)
		if err != nil {
			_ = from.Close()
			continue
		}
		r.mu.Lock()
		r.conns = append(r.conns, from, to)
		r.mu.Unlock()
		r.wait.Go(func() { pipe(from, to) })
		r.wait.Go(func() { pipe(to, from) })
	}
}

func pipe(from, to net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	_ = from.Close()
	_ = to.Close()
}

func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.conns = nil
}

// A connection breaks and the leader stays: the call waits for the load that it
// started, which is not started again.
func TestABrokenConnectionDoesNotLoadTwice(t *testing.T) {
	r := newRole(t, control.RegistryRole)
	started, end := make(chan struct{}, 2), make(chan struct{})
	m := &models{act: func(context.Context) error {
		started <- struct{}{}
		<-end
		return errs.New(errs.LoadFailed, "the one outcome")
	}}
	at, _ := serve(t, "tcp", "127.0.0.1:0", m.register)
	between := newRelay(t, at)
	r.give("a", between.l.Addr().String())
	client := r.registry(control.Options{})
	loaded := make(chan error, 1)
	go func() { loaded <- client.Load(t.Context(), "m", "", nil) }()
	<-started
	between.cut()
	close(end)
	if err := <-loaded; errs.Of(err) != errs.LoadFailed {
		t.Errorf("Load = %v, want the outcome", err)
	}
	if n := len(m.asked()); n != 1 {
		t.Errorf("the registry was asked %d times, want once", n)
	}
}

func TestCallsEndWithTheirCallers(t *testing.T) {
	r := newRole(t, control.RegistryRole)
	started, ended := make(chan bool, 1), make(chan error, 1)
	end := make(chan struct{})
	m := &models{act: func(ctx context.Context) error {
		started <- true
		<-end
		ended <- ctx.Err()
		return nil
	}}
	at, _ := serve(t, "tcp", "127.0.0.1:0", m.register)
	r.give("a", at)
	client := r.registry(control.Options{})
	ctx, cancel := context.WithCancelCause(t.Context())
	loaded := make(chan error, 1)
	go func() { loaded <- client.Load(ctx, "m", "", nil) }()
	<-started
	gone := errors.New("the caller is gone")
	cancel(gone)
	if err := <-loaded; !errors.Is(err, gone) {
		t.Errorf("Load = %v, want %v", err, gone)
	}
	close(end)
	if err := <-ended; err != nil {
		t.Errorf("the load ended with its caller: %v", err)
	}
}

// raw speaks to the registry as another program would.
func raw(t *testing.T, address string) nereidv1.RegistryServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return nereidv1.NewRegistryServiceClient(conn)
}

func begin(bytes uint64) *nereidv1.LoadPart {
	return &nereidv1.LoadPart{Part: &nereidv1.LoadPart_Model{Model: &nereidv1.LoadModel{Model: "m", FilesBytes: bytes}}}
}

func file(path, data string) *nereidv1.LoadPart {
	return &nereidv1.LoadPart{Part: &nereidv1.LoadPart_File{File: &nereidv1.FilePart{Path: path, Data: []byte(data)}}}
}

func manyFiles(n int) []*nereidv1.LoadPart {
	parts := []*nereidv1.LoadPart{begin(0)}
	for i := range n {
		parts = append(parts, file(strconv.Itoa(i), ""))
	}
	return parts
}

func TestPartsThatDoNotFitAreRefused(t *testing.T) {
	m := &models{act: done}
	at, _ := serve(t, "tcp", "127.0.0.1:0", m.register)
	client := raw(t, at)
	for name, tt := range map[string]struct {
		parts []*nereidv1.LoadPart
		want  codes.Code
	}{
		"a file without a model":        {[]*nereidv1.LoadPart{file("1/a", "x")}, codes.InvalidArgument},
		"two models":                    {[]*nereidv1.LoadPart{begin(1), begin(1)}, codes.InvalidArgument},
		"more bytes than announced":     {[]*nereidv1.LoadPart{begin(3), file("1/a", "ab"), file("1/a", "cd")}, codes.InvalidArgument},
		"a file given twice":            {[]*nereidv1.LoadPart{begin(9), file("1/a", "a"), file("1/b", "b"), file("1/a", "c")}, codes.InvalidArgument},
		"more than a registry may hold": {[]*nereidv1.LoadPart{begin(1 << 60)}, codes.ResourceExhausted},
		"more files than there may be":  {manyFiles(modelfiles.MaxLoadFiles + 1), codes.ResourceExhausted},
		"all in order":                  {[]*nereidv1.LoadPart{begin(3), file("1/a", "ab"), file("1/a", "c")}, codes.OK},
	} {
		t.Run(name, func(t *testing.T) {
			stream, err := client.Load(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range tt.parts {
				_ = stream.Send(part) // refused meanwhile: the end says why
			}
			if _, err := stream.CloseAndRecv(); status.Code(err) != tt.want {
				t.Errorf("ended with %v, want %v", err, tt.want)
			}
		})
	}
	if n := len(m.asked()); n != 1 {
		t.Errorf("the registry was asked %d times, want once", n)
	}
}

// An older release does not know a call, a newer one knows more reasons.
func TestOtherReleases(t *testing.T) {
	r := newRole(t, control.RegistryRole)
	at, _ := serve(t, "tcp", "127.0.0.1:0", func(grpc.ServiceRegistrar) {})
	r.give("older", at)
	client := r.registry(control.Options{})
	if err := client.Load(t.Context(), "m", "", nil); errs.Of(err) != errs.Unsupported {
		t.Errorf("an older registry: %v", err)
	}
	m := &models{act: func(context.Context) error { return errs.New("reason_of_tomorrow", "you cannot know") }}
	at, _ = serve(t, "tcp", "127.0.0.1:0", m.register)
	r.give("newer", at)
	if err := client.Load(t.Context(), "m", "", nil); errs.Of(err) != errs.Bug {
		t.Errorf("a newer registry: %v", err)
	}
}
