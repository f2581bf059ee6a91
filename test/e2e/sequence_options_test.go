package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// optionSeed draws the options and the traffic.
const optionSeed = 14

// drawOptions draws how a model batches sequences.
func drawOptions(rng *rand.Rand) string {
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	delay := pick("", "max_queue_delay_microseconds: 300 ", "max_queue_delay_microseconds: 3000 ")
	strategy := "direct { " + delay + pick("", "minimum_slot_utilization: 0.4 ", "minimum_slot_utilization: 1 ") + "}"
	if rng.IntN(2) == 0 {
		strategy = "oldest { " + delay + pick("max_candidate_sequences: 1 ", "max_candidate_sequences: 3 ", "max_candidate_sequences: 20 ") +
			pick("", "preferred_batch_size: [ 2 ] ", "preferred_batch_size: [ 1, 4 ] ") + pick("", "preserve_ordering: true ") + "}"
	}
	return fmt.Sprintf(`max_batch_size: %s instance_group { count: %s kind: KIND_CPU }
sequence_batching { %s max_sequence_idle_microseconds: 60000000 state { input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_FP32 dims: [ 1 ] } }`,
		pick("4", "5", "16"), pick("1", "2", "3"), strategy)
}

// Whatever the options, and over whatever transport, the same sequences give the same sums.
func TestSumsDoNotDependOnOptions(t *testing.T) {
	rng := rand.New(rand.NewPCG(optionSeed, 0))
	files, options := make(map[string]string), make(map[string]string)
	for n := range 16 {
		name := fmt.Sprint("drawn", n)
		options[name] = drawOptions(rng)
		files[name+"/1/model.onnx"] = string(onnxmodel.Accumulator(tensor.FP32, "b", 1).Bytes())
		files[name+"/config.pbtxt"] = `backend: "onnxruntime" ` + options[name]
	}
	traffic := make([][]float32, 20)
	for i := range traffic {
		for range 1 + rng.IntN(12) {
			traffic[i] = append(traffic[i], float32(rng.IntN(1000)))
		}
	}
	s := start(t, repository(t, files))
	connection, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	transports := map[string]func(model string, id uint64, xs []float32) ([]float32, error){
		"HTTP": oneByOne(s.overHTTP), "calls": oneByOne(s.overGRPC(inference.NewGRPCInferenceServiceClient(connection))),
		"calls at once": s.atOnce(connection), "a stream": s.inStream(connection),
	}
	var all sync.WaitGroup
	next := uint64(0)
	for model := range options {
		for transport, run := range transports {
			for _, xs := range traffic {
				next++
				id := next
				all.Go(func() {
					sums, err := run(model, id, xs)
					want := float32(0)
					for n, x := range xs {
						if want += x; err == nil && (len(sums) != len(xs) || sums[n] != want) {
							err = fmt.Errorf("%d sums, of which %d is not %v", len(sums), n, want)
						}
					}
					if err != nil {
						t.Errorf("%s with %s, sequence %d of %v: %v, %v", transport, options[model], id, xs, sums, err)
					}
				})
			}
		}
	}
	all.Wait()
}

// oneByOne waits for each sum before it sends on.
func oneByOne(send accumulate) func(string, uint64, []float32) ([]float32, error) {
	return func(model string, id uint64, xs []float32) (sums []float32, err error) {
		for n, x := range xs {
			sum, err := send(model, id, x, n == 0, n == len(xs)-1)
			if err != nil {
				return sums, err
			}
			sums = append(sums, sum)
		}
		return sums, nil
	}
}

// atOnce sends all requests of a sequence as calls of their own, and then waits.
func (s *server) atOnce(connection *grpc.ClientConn) func(string, uint64, []float32) ([]float32, error) {
	return func(model string, id uint64, xs []float32) (sums []float32, err error) {
		var calls []grpc.ClientStream
		for n, x := range xs {
			call, err := connection.NewStream(s.t.Context(), &grpc.StreamDesc{}, inference.GRPCInferenceService_ModelInfer_FullMethodName)
			if err == nil {
				err = errors.Join(call.SendMsg(addition(model, id, x, n == 0, n == len(xs)-1)), call.CloseSend())
			}
			if err != nil {
				return nil, err
			}
			calls = append(calls, call)
		}
		for _, call := range calls {
			r := new(inference.ModelInferResponse)
			if err := call.RecvMsg(r); err != nil {
				return sums, err
			}
			sum, err := sumOf(r)
			if err != nil {
				return sums, err
			}
			sums = append(sums, sum)
		}
		return sums, nil
	}
}

// inStream sends all requests of a sequence in a stream.
func (s *server) inStream(connection *grpc.ClientConn) func(string, uint64, []float32) ([]float32, error) {
	return func(model string, id uint64, xs []float32) (sums []float32, err error) {
		stream, err := inference.NewGRPCInferenceServiceClient(connection).ModelStreamInfer(s.t.Context())
		if err != nil {
			return nil, err
		}
		for n, x := range xs {
			if err := stream.Send(addition(model, id, x, n == 0, n == len(xs)-1)); err != nil {
				return nil, err
			}
		}
		if err := stream.CloseSend(); err != nil {
			return nil, err
		}
		for range xs {
			r, err := stream.Recv()
			if err == nil && r.GetErrorMessage() != "" {
				err = errors.New(strings.TrimSpace(r.GetErrorMessage()))
			}
			if err != nil {
				return sums, err
			}
			sum, err := sumOf(r.GetInferResponse())
			if err != nil {
				return sums, err
			}
			sums = append(sums, sum)
		}
		return sums, nil
	}
}
