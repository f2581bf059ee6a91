package gateway_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a scheduler that answers a request with its inputs, or holds it.
type echo struct {
	to        infer.Responder
	hold      chan struct{} // if not nil, answers wait for it
	submitted chan infer.ModelRef
}

func (e *echo) Submit(r *infer.Request) error {
	e.submitted <- r.Model
	go func() {
		if e.hold != nil {
			<-e.hold
		}
		out := infer.Tensor{Name: "y", Datatype: r.Inputs[0].Datatype, Shape: r.Inputs[0].Shape, Data: r.Inputs[0].Data.Retain()}
		response := &infer.Response{Work: r.Work, Final: true, Outputs: []infer.Tensor{out}}
		r.Release()
		e.to.Respond(response)
	}()
	return nil
}

func (e *echo) Cancel(infer.RequestID) {}

func (e *echo) Statistics(_ context.Context, refs []infer.ModelRef) ([]infer.Statistics, error) {
	return make([]infer.Statistics, len(refs)), nil
}

// harness is a gateway on a real bus. The test writes the bus's buckets.
type harness struct {
	t       *testing.T
	bus     *bus.Bus
	gateway *gateway.Gateway
	echo    *echo
	http    string
	grpc    string
	stop    func() error
}

func start(t *testing.T, hold chan struct{}, change ...func(*gateway.Config)) *harness {
	t.Helper()
	return startReaching(t, nil, hold, change...)
}

// startReaching starts a gateway for which reachable reports the pools that have a scheduler.
func startReaching(t *testing.T, reachable func(string) bool, hold chan struct{}, change ...func(*gateway.Config)) *harness {
	t.Helper()
	return startOn(t, openBus(t, bus.Config{Lease: time.Hour}), reachable, hold, change...)
}

func openBus(t *testing.T, c bus.Config) *bus.Bus {
	t.Helper()
	b, err := bus.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.EnsureBuckets(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

// startOn starts a gateway on a bus, and closes the gateway at the end.
func startOn(t *testing.T, b *bus.Bus, reachable func(string) bool, hold chan struct{}, change ...func(*gateway.Config)) *harness {
	t.Helper()
	return startWith(t, gateway.Deps{Bus: b, Reachable: reachable}, hold, change...)
}

// startWith starts a gateway that works with more than an echo.
func startWith(t *testing.T, deps gateway.Deps, hold chan struct{}, change ...func(*gateway.Config)) *harness {
	t.Helper()
	h := begin(t, deps, hold, change...)
	h.listens()
	return h
}

// begin starts a gateway that may not listen yet.
func begin(t *testing.T, deps gateway.Deps, hold chan struct{}, change ...func(*gateway.Config)) *harness {
	t.Helper()
	h := &harness{t: t, bus: deps.Bus, echo: &echo{hold: hold, submitted: make(chan infer.ModelRef, 100)}}
	config := gateway.Default()
	config.HTTPAddress, config.HTTPPort = "127.0.0.1", 0
	config.GRPCAddress, config.GRPCPort = "127.0.0.1", 0
	for _, c := range change {
		c(&config)
	}
	deps.Dispatcher, deps.Statistics = h.echo, func(string) gateway.StatisticsSource { return h.echo }
	deps.Clock, deps.Pool, deps.Metrics = mono.New(), tensor.NewPool(0), prometheus.NewRegistry()
	if deps.Log == nil {
		deps.Log = zap.NewNop()
	}
	var err error
	if h.gateway, err = gateway.New(config, deps); err != nil {
		t.Fatal(err)
	}
	h.echo.to = h.gateway
	h.run()
	return h
}

// run runs the gateway until the test ends or calls stop.
func (h *harness) run() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.gateway.Run(ctx) }()
	stopped := false
	h.stop = func() error {
		cancel()
		stopped = true
		return <-ended
	}
	h.t.Cleanup(func() {
		if !stopped {
			if err := h.stop(); err != nil {
				h.t.Errorf("Run: %v", err)
			}
		}
		if err := h.bus.Close(); err != nil {
			h.t.Error(err)
		}
	})
}

// listens waits until the gateway listens.
func (h *harness) listens() {
	<-h.gateway.Bound()
	h.http, h.grpc = h.gateway.Addresses()
}

// put writes a value into a bucket as its owner would.
func put[T nereidv1.Value](h *harness, name, key string, v T) uint64 {
	h.t.Helper()
	bucket, err := bus.NewBucket(h.bus, name, bus.Values[T]())
	if err != nil {
		h.t.Fatal(err)
	}
	revision, err := bucket.Put(h.t.Context(), key, v)
	if err != nil {
		h.t.Fatal(err)
	}
	return revision
}

// hold acquires a lease and keeps it until the test ends.
func hold[T nereidv1.Value](h *harness, name, key string, v T) *bus.Lease[T] {
	h.t.Helper()
	bucket, err := bus.NewBucket(h.bus, name, bus.Values[T]())
	if err != nil {
		h.t.Fatal(err)
	}
	lease, err := bucket.Acquire(h.t.Context(), bus.Claim[T]{Key: key, Value: func(uint64) T { return v }})
	if err != nil {
		h.t.Fatal(err)
	}
	return lease
}

func model(generation uint64) *nereidv1.ModelValue {
	return &nereidv1.ModelValue{
		Schema: nereidv1.Schema, Name: "m",
		Config: &inference.ModelConfig{
			Name: "m", Backend: "echo", MaxBatchSize: 4,
			Input:  []*inference.ModelInput{{Name: "x", DataType: inference.DataType_TYPE_INT32, Dims: []int64{2}}},
			Output: []*inference.ModelOutput{{Name: "y", DataType: inference.DataType_TYPE_INT32, Dims: []int64{2}}},
		},
		Versions: []*nereidv1.ModelVersion{{Version: 1, Generation: generation, Desired: nereidv1.DesiredState_DESIRED_STATE_SERVE}},
	}
}

func runs(state nereidv1.State, generations ...uint64) *nereidv1.InstancesValue {
	v := &nereidv1.InstancesValue{Schema: nereidv1.Schema, WorkerId: "w", Epoch: 1}
	for _, g := range generations {
		v.Versions = append(v.Versions, &nereidv1.WorkerVersion{Model: &nereidv1.ModelRef{Name: "m", Version: 1, Generation: g}, State: state})
	}
	return v
}

// serveModel makes the buckets say that m is ready.
func (h *harness) serveModel() *bus.Lease[*nereidv1.WorkerValue] {
	revision := put(h, bus.Models, "m", model(1))
	hold(h, bus.Leaders, "registry", &nereidv1.LeaderValue{Schema: nereidv1.Schema, Holder: "r", ModelsRevision: revision})
	lease := hold(h, bus.Workers, "w", &nereidv1.WorkerValue{Schema: nereidv1.Schema, WorkerId: "w", Epoch: 1})
	put(h, bus.Instances, "w/m", runs(nereidv1.State_STATE_READY, 1))
	<-h.gateway.Started()
	return lease
}

// get asks until the answer has the status, which the buckets bring about.
func (h *harness) eventually(status int, path string) string {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 2*time.Minute)
	defer cancel()
	for {
		got, body := h.do(http.MethodGet, path, "")
		if got == status {
			return body
		}
		if ctx.Err() != nil {
			h.t.Fatalf("GET %s stays %d %s, want %d", path, got, body, status)
		}
	}
}

func (h *harness) do(method, path, body string) (int, string) {
	h.t.Helper()
	request, err := http.NewRequestWithContext(h.t.Context(), method, "http://"+h.http+path, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		h.t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return response.StatusCode, string(data)
}

const inferBody = `{"inputs":[{"name":"x","datatype":"INT32","shape":[1,2],"data":[3,4]}]}`

// A scheduler that becomes reachable just after a snapshot completes the start.
func TestStartsWhenASchedulerIsReached(t *testing.T) {
	var asked atomic.Bool
	h := startReaching(t, func(string) bool { return asked.Swap(true) }, nil)
	h.serveModel()
	h.eventually(http.StatusOK, "/v2/health/ready")
}

func TestServesWhatTheBucketsSay(t *testing.T) {
	h := start(t, nil)
	if status, _ := h.do(http.MethodGet, "/v2/health/ready", ""); status != http.StatusBadRequest && status != http.StatusServiceUnavailable {
		t.Errorf("ready before the registry has spoken: %d", status)
	}
	worker := h.serveModel()
	h.eventually(http.StatusOK, "/v2/health/ready")
	status, body := h.do(http.MethodPost, "/v2/models/m/infer", inferBody)
	var answer struct {
		Outputs []struct{ Data []int }
	}
	if err := json.Unmarshal([]byte(body), &answer); status != http.StatusOK || err != nil {
		t.Fatalf("infer: %d %s, %v", status, body, err)
	}
	if diff := cmp.Diff([]int{3, 4}, answer.Outputs[0].Data); diff != "" {
		t.Error(diff)
	}
	// New content: requests go to the old until a worker has the new one.
	put(h, bus.Models, "m", model(2))
	put(h, bus.Instances, "w/m", runs(nereidv1.State_STATE_READY, 1, 2))
	for <-h.echo.submitted; ; {
		if status, body := h.do(http.MethodPost, "/v2/models/m/infer", inferBody); status != http.StatusOK {
			t.Fatalf("during the swap: %d %s", status, body)
		}
		if ref := <-h.echo.submitted; ref.Generation == 2 {
			break
		}
	}
	// The worker goes: not ready, and it says so.
	if err := worker.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.eventually(http.StatusBadRequest, "/v2/health/ready")
}

func TestGRPCServesTheSame(t *testing.T) {
	h := start(t, nil)
	h.serveModel()
	connection, err := grpc.NewClient(h.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	client := inference.NewGRPCInferenceServiceClient(connection)
	response, err := client.ModelInfer(t.Context(), &inference.ModelInferRequest{
		ModelName: "m", Inputs: []*inference.ModelInferRequest_InferInputTensor{{
			Name: "x", Datatype: "INT32", Shape: []int64{1, 2}, Contents: &inference.InferTensorContents{IntContents: []int32{3, 4}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := response.GetRawOutputContents(); len(got) != 1 || got[0][0] != 3 || got[0][4] != 4 {
		t.Errorf("outputs %v, want 3 and 4", got)
	}
}

func TestDrainFinishesWhatIsInFlight(t *testing.T) {
	release := make(chan struct{})
	h := start(t, release)
	h.serveModel()
	status := make(chan int, 1)
	go func() {
		got, _ := h.do(http.MethodPost, "/v2/models/m/infer", inferBody)
		status <- got
	}()
	<-h.echo.submitted
	h.awaitState(nereidv1.State_STATE_READY)
	ended := make(chan error, 1)
	go func() { ended <- h.stop() }()
	// While it drains the gateway answers, and refuses new requests; its lease
	// says so.
	h.eventually(http.StatusBadRequest, "/v2/health/ready")
	h.awaitState(nereidv1.State_STATE_UNLOADING)
	if got, body := h.do(http.MethodPost, "/v2/models/m/infer", inferBody); got != http.StatusServiceUnavailable || !strings.Contains(body, "Server is stopping") {
		t.Errorf("new request while draining: %d %s", got, body)
	}
	close(release)
	if got := <-status; got != http.StatusOK {
		t.Errorf("request in flight: %d, want 200", got)
	}
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// awaitState waits until the gateway's lease reports a state.
func (h *harness) awaitState(want nereidv1.State) {
	h.t.Helper()
	gateways, err := bus.NewBucket(h.bus, bus.Gateways, bus.Values[*nereidv1.ServiceValue]())
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), 2*time.Minute)
	defer cancel()
	for e := range gateways.Watch(ctx) {
		if e.Kind == bus.EventPut && e.Value.GetState() == want {
			return
		}
	}
	h.t.Fatalf("the lease does not tell of %v", want)
}

func TestGatewayStopsAfterItsNotice(t *testing.T) {
	h := start(t, nil, func(c *gateway.Config) { c.ExitNotice = 1 })
	if err := h.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
}

// A gateway that stops while NATS is unavailable lets its lease expire.
func TestGatewayStopsWithoutTheStore(t *testing.T) {
	server := openBus(t, bus.Config{Listen: "127.0.0.1:0"})
	h := startOn(t, openBus(t, bus.Config{URL: server.Addr()}), nil, nil)
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if err := h.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
}

func TestSettingsAreChecked(t *testing.T) {
	tests := map[string]func(*gateway.Config){
		"id":                    func(c *gateway.Config) { c.ID = "" },
		"--http-port":           func(c *gateway.Config) { c.HTTPPort = 70000 },
		"--grpc-port":           func(c *gateway.Config) { c.GRPCPort = -1 },
		"both 8000":             func(c *gateway.Config) { c.GRPCPort = 8000 },
		"--http-max-input-size": func(c *gateway.Config) { c.MaxInput = 0 },
		"--max-request-bytes":   func(c *gateway.Config) { c.MaxRequestBytes = c.MaxInput - 1 },
		"--exit-timeout-secs":   func(c *gateway.Config) { c.ExitTimeout = -1 },
		"--exit-notice-secs":    func(c *gateway.Config) { c.ExitNotice = -1 },
		"--grpc-keepalive-time": func(c *gateway.Config) { c.Connections.PingTime = 0 },
		"keepalive-timeout":     func(c *gateway.Config) { c.Connections.PingTimeout = 0 },
		"min-recv-ping":         func(c *gateway.Config) { c.Connections.PingInterval = -1 },
		"max-ping-strikes":      func(c *gateway.Config) { c.Connections.PingStrikes = -1 },
		"connection-age is":     func(c *gateway.Config) { c.Connections.MaxAge = -1 },
		"age-grace":             func(c *gateway.Config) { c.Connections.Grace = -1 },
	}
	for want, change := range tests {
		c := gateway.Default()
		change(&c)
		if _, err := gateway.New(c, gateway.Deps{}); errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s with %q", err, errs.ConfigInvalid, want)
		}
	}
	if err := gateway.Default().Validate(); err != nil {
		t.Error(err)
	}
}
