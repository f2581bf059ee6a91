package rpc_test

import (
	"context"
	"encoding/binary"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/requests"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a real gateway behind a real gRPC server; only the models are a
// stand-in, which adds and subtracts.
type server struct {
	t       testing.TB
	client  inference.GRPCInferenceServiceClient
	conn    *grpc.ClientConn
	gateway *core.Gateway
	pool    *tensor.Pool
	clock   *mono.System
	models  *models
	logged  chan error

	listener *bufconn.Listener
	server   *grpc.Server
}

func serve(t testing.TB, extra ...grpc.ServerOption) *server {
	t.Helper()
	return serveWith(t, rpc.Options{}, extra...)
}

// serveWith is serve with options of the front end, less clock and log.
func serveWith(t testing.TB, o rpc.Options, extra ...grpc.ServerOption) *server {
	t.Helper()
	s := &server{t: t, pool: tensor.NewPool(1 << 20), clock: mono.New(), logged: make(chan error, 8)}
	table := requests.New(1)
	s.models = &models{table: table, pool: s.pool, held: make(map[infer.RequestID]*infer.Request), submitted: make(chan infer.Request, 512)}
	s.gateway = core.New(core.ServerInfo{Name: "nereid", Version: "1.2.3", Extensions: []string{"classification"}},
		core.Deps{Dispatcher: s.models, Statistics: func(string) core.StatisticsSource { return s.models }, Requests: table, Clock: s.clock, Pool: s.pool, StrictReadiness: true})
	s.gateway.Update(core.NewSnapshot(1, true, repository()))
	o.Clock, o.Log = s.clock, func(_ string, err error) { s.logged <- err }
	s.listener = bufconn.Listen(1 << 20)
	server := rpc.New(s.gateway, o, extra...)
	s.server = server
	go func() { _ = server.Serve(&listener{Listener: s.listener}) }()
	s.dial()
	t.Cleanup(func() {
		_ = s.conn.Close()
		server.Stop()
		if n := s.gateway.InFlight(); n != 0 {
			t.Errorf("%d requests are in flight at the end", n)
		}
		if m := s.pool.Stats(); m.InUse != 0 {
			t.Errorf("%d bytes of mapped tensor memory are in use at the end", m.InUse)
		}
	})
	return s
}

// listener sets one read deadline at a time. In a bubble of synctest, bufconn turns a deadline that
// has passed into a timer that runs at once, and Go 1.26 runs all of these in one context of the race
// detector: two at a time may crash it.
type listener struct {
	*bufconn.Listener
	deadlines sync.Mutex
}

func (l *listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return accepted{conn, &l.deadlines}, err
}

type accepted struct {
	net.Conn
	deadlines *sync.Mutex
}

func (c accepted) SetReadDeadline(at time.Time) error {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	return c.Conn.SetReadDeadline(at)
}

// dial connects a client, in place of the one before.
func (s *server) dial(options ...grpc.DialOption) {
	s.t.Helper()
	if s.conn != nil {
		_ = s.conn.Close()
	}
	conn, err := grpc.NewClient("passthrough:///bufconn", append(options, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.listener.DialContext(ctx) }))...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.conn, s.client = conn, inference.NewGRPCInferenceServiceClient(conn)
}

func repository() []*core.Model {
	addSub := &modelconfig.Config{
		Name: "add_sub", Platform: "onnxruntime_onnx", MaxBatchSize: 100_000,
		Inputs:  []modelconfig.IO{int32s("INPUT0"), int32s("INPUT1")},
		Outputs: []modelconfig.IO{int32s("OUTPUT0"), int32s("OUTPUT1")},
	}
	stream := *addSub
	stream.Name, stream.Decoupled = "tokens", true
	return []*core.Model{
		{Name: "add_sub", Versions: []*core.Version{
			{Ref: infer.ModelRef{Name: "add_sub", Version: 1, Generation: 1}, Config: addSub, State: infer.Ready},
			{Ref: infer.ModelRef{Name: "add_sub", Version: 2, Generation: 1}, Config: addSub, State: infer.Unavailable, Cause: "unloaded"},
		}},
		{Name: "tokens", Versions: []*core.Version{
			{Ref: infer.ModelRef{Name: "tokens", Version: 1, Generation: 1}, Config: &stream, State: infer.Ready},
		}},
	}
}

func int32s(name string) modelconfig.IO {
	return modelconfig.IO{Name: name, Datatype: tensor.Int32, Dims: tensor.Shape{16}}
}

// models responds to what is submitted, or keeps it while hold is set.
type models struct {
	table     *requests.Table
	pool      *tensor.Pool
	submitted chan infer.Request // a copy of each request, without a claim to its bytes

	mu      sync.Mutex
	refusal error                              // guarded by mu
	failure error                              // guarded by mu
	hold    bool                               // guarded by mu
	held    map[infer.RequestID]*infer.Request // guarded by mu
}

func (m *models) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

func (m *models) Submit(r *infer.Request) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refusal != nil {
		return m.refusal
	}
	select {
	case m.submitted <- *r:
	default: // benchmarks do not look
	}
	if m.hold {
		m.held[r.Work.Request] = r
		return nil
	}
	m.finish(r, m.failure)
	return nil
}

func (m *models) Cancel(id infer.RequestID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.held[id]; r != nil {
		delete(m.held, id)
		r.Release()
	}
}

// Statistics says of add_sub that it has run, of other models nothing.
func (m *models) Statistics(_ context.Context, refs []infer.ModelRef) ([]infer.Statistics, error) {
	list := make([]infer.Statistics, len(refs))
	for i, ref := range refs {
		if ref.Name == "add_sub" {
			list[i] = statistics()
		}
	}
	return list, nil
}

// release responds to what is held, the last submitted first.
func (m *models) release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ids []infer.RequestID
	for id := range m.held {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b infer.RequestID) int { return int(b.Number) - int(a.Number) })
	for _, id := range ids {
		m.finish(m.held[id], nil)
		delete(m.held, id)
	}
}

// fail ends the first that is held with err.
func (m *models) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var first *infer.Request
	for _, r := range m.held {
		if first == nil || r.Work.Request.Number < first.Work.Request.Number {
			first = r
		}
	}
	delete(m.held, first.Work.Request)
	m.finish(first, err)
}

// part gives a response to a request that is held, and others may follow.
func (m *models) part(r infer.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	response := m.addSub(m.held[r.Work.Request])
	response.Final = false
	m.table.Respond(response)
}

// end ends a request that is held without a response more.
func (m *models) end(r infer.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held[r.Work.Request].Release()
	delete(m.held, r.Work.Request)
	m.table.Respond(&infer.Response{Work: r.Work, Final: true})
}

func (m *models) finish(r *infer.Request, failure error) {
	response := infer.Fail(r.Work, failure)
	if failure == nil {
		response = m.addSub(r)
	}
	r.Release()
	m.table.Respond(response)
}

func (m *models) addSub(r *infer.Request) *infer.Response {
	response := &infer.Response{Work: r.Work, Final: true}
	a, _ := r.Inputs[0].Data.Bytes()
	b, _ := r.Inputs[1].Data.Bytes()
	for i, name := range []string{"OUTPUT0", "OUTPUT1"} {
		if !r.Wants(name) {
			continue
		}
		sign := int32(1 - 2*i)
		out, err := m.pool.Get(len(a))
		if err != nil {
			return infer.Fail(r.Work, err)
		}
		for at := 0; at < len(a); at += 4 {
			sum := int32(binary.LittleEndian.Uint32(a[at:])) + sign*int32(binary.LittleEndian.Uint32(b[at:]))
			binary.LittleEndian.PutUint32(out.Bytes()[at:], uint32(sum))
		}
		response.Outputs = append(response.Outputs, infer.Tensor{
			Name: name, Datatype: tensor.Int32, Shape: slices.Clone(r.Inputs[0].Shape), Data: tensor.InBuffer(out, 0, int64(len(a))),
		})
	}
	return response
}

// addSub is a request of rows rows in which INPUT0 counts up and INPUT1 is
// all ones.
func addSub(rows int) *inference.ModelInferRequest { return addSubBy(rows, 1) }

// addSubBy is addSub with another number than one.
func addSubBy(rows int, by int32) *inference.ModelInferRequest {
	a, b := make([]byte, 64*rows), make([]byte, 64*rows)
	for i := range 16 * rows {
		binary.LittleEndian.PutUint32(a[4*i:], uint32(i))
		binary.LittleEndian.PutUint32(b[4*i:], uint32(by))
	}
	shape := []int64{int64(rows), 16}
	return &inference.ModelInferRequest{
		ModelName: "add_sub", Id: "r1",
		Inputs: []*inference.ModelInferRequest_InferInputTensor{
			{Name: "INPUT0", Datatype: "INT32", Shape: shape}, {Name: "INPUT1", Datatype: "INT32", Shape: shape},
		},
		RawInputContents: [][]byte{a, b},
	}
}

func int32At(b []byte, i int) int32 { return int32(binary.LittleEndian.Uint32(b[4*i:])) }
