package cluster

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/test/load"
)

const (
	sequenceClients = 64
	sequenceLength  = 9
	// between is the pause of a client, so that its sequences live at any moment.
	between = 10 * time.Millisecond
)

// TestSequencesUnderKills has 64 clients run sequences while schedulers and workers
// die. A response is the right sum, or the sequence ends once with a reason; and each
// client then gets right sums again.
func TestSequencesUnderKills(t *testing.T) {
	n := kills(t)
	onnxmodel.Library(t)
	s := &scene{cluster: prepare(t, nil)}
	models := served()
	for _, strategy := range []string{"direct", "oldest"} {
		s.accumulator(strategy)
		models = append(models, strategy)
	}
	s.start(models)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a := accumulation{t: t, right: make([]int, sequenceClients), failures: make(map[errs.Reason]int)}
	var all sync.WaitGroup
	for i := range sequenceClients {
		all.Go(func() { a.run(ctx, i, s.targets) })
	}
	defer all.Wait()
	defer cancel()
	a.settle()
	for i := range n {
		disturb := killHolder(control.PoolRole("default"))
		if i%2 == 1 {
			disturb = killSchedulers
		}
		if across, _ := a.outlive(s, disturb); across == 0 {
			t.Error("no sequence went on")
		}
	}
	for range n {
		if _, failed := a.outlive(s, killOne("worker")); failed == 0 {
			t.Error("no sequence ended with its worker")
		}
	}
	// A successor that does not know what ran on the worker has requests fail.
	a.outlive(s, killHolder(control.PoolRole("default")))
}

// killSchedulers kills all schedulers, so that none has known of a sequence.
func killSchedulers(s *scene) string {
	role := control.PoolRole("default")
	s.strike("schedulers")
	for i := range schedulers {
		s.processes[fmt.Sprintf("scheduler-%d", i+1)].kill()
	}
	s.vacant(role)
	for i := range schedulers {
		s.processes[fmt.Sprintf("scheduler-%d", i+1)].start()
	}
	for i := range schedulers {
		s.processes[fmt.Sprintf("scheduler-%d", i+1)].ready()
	}
	return "all schedulers"
}

// accumulator puts an ONNX model into the repository that gives the sum of its
// inputs since START, from an implicit state.
func (c *cluster) accumulator(strategy string) {
	c.t.Helper()
	dir := filepath.Join(c.dir, "models", strategy)
	if err := os.MkdirAll(filepath.Join(dir, "1"), 0o755); err != nil {
		c.t.Fatal(err)
	}
	limits := map[string]string{"oldest": "max_candidate_sequences: 4"}
	for name, text := range map[string]string{
		"1/model.onnx": string(onnxmodel.Accumulator(tensor.FP32, "b", 1).Bytes()),
		"config.pbtxt": fmt.Sprintf(`
backend: "onnxruntime"
max_batch_size: 4
instance_group { count: 2 kind: KIND_CPU }
sequence_batching {
  %s { %s }
  max_sequence_idle_microseconds: 600000000
  state { input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_FP32 dims: [ 1 ] }
}
`, strategy, limits[strategy]),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
}

// accumulation is what became of the sequences of all clients.
type accumulation struct {
	t *testing.T

	mu       sync.Mutex
	right    []int               // sequences of each client that were right to their end; guarded by mu
	spans    [][2]time.Time      // from the first to the last response of those; guarded by mu
	failures map[errs.Reason]int // of requests; guarded by mu
}

// sum is a response: a sum, or why there is none.
type sum struct {
	value  float32
	reason errs.Reason
	text   string
	at     time.Time
}

// run runs one sequence after the other under one correlation ID until ctx is
// done. A client takes one gateway, or both in turns, or a stream.
func (a *accumulation) run(ctx context.Context, client int, targets []load.Target) {
	model, target := []string{"direct", "oldest"}[client%2], client/2%len(targets)
	var turn func(ctx context.Context, xs []float32) ([]sum, error)
	if way := client / 4 % 4; way < 2 {
		transport := &http.Transport{}
		defer transport.CloseIdleConnections()
		h := overHTTP{model: model, id: client + 1, targets: targets[target : target+1], client: http.Client{Transport: transport}}
		if way == 1 {
			h.targets = targets
		}
		turn = h.turn
	} else {
		connection, err := grpc.NewClient(targets[target].GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			a.t.Error(err)
			return
		}
		defer connection.Close()
		turn = (&inStream{model: model, id: client + 1, client: inference.NewGRPCInferenceServiceClient(connection)}).turn
	}
	for count := 0; ctx.Err() == nil; count++ {
		xs := make([]float32, sequenceLength)
		for i := range xs {
			xs[i] = float32(100*(count%50) + client + i)
		}
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		sums, err := turn(bounded, xs)
		cancel()
		if err == nil {
			err = a.judge(client, xs, sums)
		}
		if err != nil {
			a.t.Errorf("%s, client %d, sequence %d: %v", model, client, count, err)
			return
		}
	}
}

// judge holds the responses to one sequence against the promises. The client went on
// after a failure, and did not start anew.
func (a *accumulation) judge(client int, xs []float32, sums []sum) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	total, failed, ended := float32(0), false, false
	for i, got := range sums {
		switch {
		case got.reason == "" && ended:
			return fmt.Errorf("request %d has a sum of a sequence that has ended: %+v", i, sums)
		case got.reason == "" && got.value != total+xs[i]:
			return fmt.Errorf("request %d has a wrong sum, want %v of %v: %+v", i, total+xs[i], xs, sums)
		case got.reason == "":
			total += xs[i]
			continue
		case got.reason == errs.SequenceNotStarted && !failed:
			return fmt.Errorf("request %d finds no sequence, of whose end nobody was told: %+v", i, sums)
		case got.reason != errs.SequenceNotStarted && got.reason.GRPC() != errs.SequenceLost.GRPC():
			return fmt.Errorf("request %d failed as %s: %+v", i, got.reason, sums)
		}
		failed, ended = true, ended || i == 0 || got.reason == errs.SequenceLost
		a.failures[got.reason]++
	}
	if !failed {
		a.right[client]++
		a.spans = append(a.spans, [2]time.Time{sums[0].at, sums[len(sums)-1].at})
	}
	return nil
}

// outlive harms the cluster while sequences live, and waits until all clients have
// got right sums again. It returns how many sequences went on over the harm, and how
// many requests failed.
func (a *accumulation) outlive(s *scene, disturb func(*scene) string) (across, failed int) {
	a.t.Helper()
	a.mu.Lock()
	a.spans, a.failures = nil, make(map[errs.Reason]int)
	a.mu.Unlock()
	victim := disturb(s)
	a.settle()
	at := s.harms[len(s.harms)-1].at
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, span := range a.spans {
		if span[0].Before(at) && span[1].After(at) {
			across++
		}
	}
	tell(a.t, fmt.Sprintf("sequences, %s: %d went on, requests that failed %v", victim, across, a.failures))
	for _, n := range a.failures {
		failed += n
	}
	return across, failed
}

// settle waits until each client has begun a sequence from now on that was right to
// its end.
func (a *accumulation) settle() {
	a.t.Helper()
	count := func() []int {
		a.mu.Lock()
		defer a.mu.Unlock()
		return append([]int(nil), a.right...)
	}
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	before, give := count(), time.After(patience)
	for client := 0; client < sequenceClients; {
		if count()[client] >= before[client]+2 { // one may have begun before
			client++
			continue
		}
		select {
		case <-poll.C:
			if a.t.Failed() {
				a.t.FailNow() // a client has given up
			}
		case <-give:
			a.t.Fatalf("waited in vain for client %d to have right sums", client)
		}
	}
}

// overHTTP sends the requests of a sequence one after the other.
type overHTTP struct {
	model   string
	id      int
	targets []load.Target
	client  http.Client
}

func (h *overHTTP) turn(ctx context.Context, xs []float32) ([]sum, error) {
	tick := time.NewTicker(between)
	defer tick.Stop()
	sums, lost := make([]sum, len(xs)), 0
	for i, x := range xs {
		<-tick.C
		var err error
		if sums[i], err = h.ask(ctx, h.targets[i%len(h.targets)], x, i == 0, i == len(xs)-1); err != nil {
			return nil, fmt.Errorf("request %d after %+v: %w", i, sums[:i], err)
		}
		if sums[i].reason == errs.SequenceLost {
			lost++
		}
	}
	if lost > 1 {
		return nil, fmt.Errorf("was told %d times that it is lost: %+v", lost, sums)
	}
	return sums, nil
}

func (h *overHTTP) ask(ctx context.Context, to load.Target, x float32, start, end bool) (sum, error) {
	body := fmt.Sprintf(`{"parameters":{"sequence_id":%d,"sequence_start":%t,"sequence_end":%t},`+
		`"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[%v]}]}`,
		h.id, start, end, x)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+to.HTTP+"/v2/models/"+h.model+"/infer", strings.NewReader(body))
	if err != nil {
		return sum{}, err
	}
	response, err := h.client.Do(request)
	if err != nil {
		return sum{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	got := sum{reason: errs.Reason(response.Header.Get("Nereid-Reason")), at: time.Now()}
	if err != nil || got.reason != "" {
		got.text = string(text)
		return got, err
	}
	var outputs struct{ Outputs []struct{ Data []float32 } }
	if err := json.Unmarshal(text, &outputs); err != nil || len(outputs.Outputs) != 1 || len(outputs.Outputs[0].Data) != 1 {
		return sum{}, fmt.Errorf("%d %s", response.StatusCode, text)
	}
	got.value = outputs.Outputs[0].Data[0]
	return got, nil
}

// inStream sends the requests of a sequence in a stream, several at a time.
type inStream struct {
	model  string
	id     int
	client inference.GRPCInferenceServiceClient
}

func (s *inStream) turn(ctx context.Context, xs []float32) ([]sum, error) {
	const atOnce = sequenceLength / 3
	tick := time.NewTicker(atOnce * between)
	defer tick.Stop()
	stream, err := s.client.ModelStreamInfer(ctx)
	if err != nil {
		return nil, err
	}
	var sums []sum
	for from := 0; from < len(xs); from += atOnce {
		<-tick.C
		for i := from; i < from+atOnce; i++ {
			if err := stream.Send(s.request(i, xs[i], i == len(xs)-1)); err != nil {
				return nil, err
			}
		}
		for i := from; i < from+atOnce; i++ {
			item, err := stream.Recv()
			if err != nil {
				return nil, fmt.Errorf("response %d after %+v: %w", i, sums, err)
			}
			if id := item.GetInferResponse().GetId(); id != fmt.Sprint(i) {
				return nil, fmt.Errorf("response to %q, want that to %d", id, i)
			}
			sums = append(sums, read(item))
		}
	}
	if err := stream.CloseSend(); err != nil {
		return nil, err
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("the stream's end: %w", err)
	}
	return sums, nil
}

func (s *inStream) request(i int, x float32, end bool) *inference.ModelInferRequest {
	boolean := func(b bool) *inference.InferParameter {
		return &inference.InferParameter{ParameterChoice: &inference.InferParameter_BoolParam{BoolParam: b}}
	}
	return &inference.ModelInferRequest{
		ModelName: s.model, Id: fmt.Sprint(i),
		Inputs:           []*inference.ModelInferRequest_InferInputTensor{{Name: "INPUT0", Datatype: "FP32", Shape: []int64{1, 1}}},
		RawInputContents: [][]byte{binary.LittleEndian.AppendUint32(nil, math.Float32bits(x))},
		Parameters: map[string]*inference.InferParameter{
			"sequence_id":    {ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: int64(s.id)}},
			"sequence_start": boolean(i == 0), "sequence_end": boolean(end),
		},
	}
}

// read is a response of a stream, which has the words of an error alone.
func read(item *inference.ModelStreamInferResponse) sum {
	got := sum{text: item.GetErrorMessage(), at: time.Now()}
	switch {
	case got.text == "":
		got.value = math.Float32frombits(binary.LittleEndian.Uint32(item.GetInferResponse().GetRawOutputContents()[0]))
	case strings.Contains(got.text, "must specify the START flag"):
		got.reason = errs.SequenceNotStarted
	case strings.Contains(got.text, "cannot go on") || strings.Contains(got.text, "the scheduler that knew of it is gone") ||
		strings.Contains(got.text, "does not have the state"):
		got.reason = errs.SequenceLost
	default: // which of them the others see, over HTTP
		got.reason = errs.InstanceCrashed
	}
	return got
}
