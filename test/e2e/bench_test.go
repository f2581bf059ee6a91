package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// BenchmarkServing measures the process with the add-and-subtract model: the
// time of a request as a client sees it, and the CPU time of the server for
// it. The clients share the machine's cores, so the CPU time is the steadier
// figure.
func BenchmarkServing(b *testing.B) {
	s := start(b, examples(b))
	defer s.kill()
	for _, protocol := range []string{"http", "grpc"} {
		for _, concurrency := range []int{1, 16, 64} {
			b.Run(fmt.Sprintf("%s/concurrency=%d", protocol, concurrency), func(b *testing.B) {
				call := s.callHTTP
				if protocol == "grpc" {
					call = s.callGRPC(b)
				}
				s.measure(b, concurrency, call)
			})
		}
	}
}

// measure runs b.N requests from so many clients and reports the quantiles.
func (s *server) measure(b *testing.B, concurrency int, call func(context.Context) error) {
	b.Helper()
	taken := make([][]time.Duration, concurrency)
	var left atomic.Int64
	left.Store(int64(b.N))
	before := s.cpuTimes(b)
	b.ResetTimer()
	var clients sync.WaitGroup
	for i := range concurrency {
		clients.Go(func() {
			for left.Add(-1) >= 0 {
				begun := time.Now()
				if err := call(b.Context()); err != nil {
					b.Error(err)
					return
				}
				taken[i] = append(taken[i], time.Since(begun))
			}
		})
	}
	clients.Wait()
	b.StopTimer()
	after := s.cpuTimes(b)
	all := slices.Sorted(slices.Values(slices.Concat(taken...)))
	b.ReportMetric(float64(all[len(all)/2].Nanoseconds())/1e3, "p50-µs")
	b.ReportMetric(float64(all[len(all)*99/100].Nanoseconds())/1e3, "p99-µs")
	for name, cpu := range after {
		b.ReportMetric(float64((cpu-before[name]).Nanoseconds())/1e3/float64(b.N), name+"-cpu-µs/op")
	}
}

// cpuTimes are those of the deployment's processes, by their programs; nereid
// serve is called the server.
func (s *server) cpuTimes(b *testing.B) map[string]time.Duration {
	b.Helper()
	if len(s.all) == 1 {
		return map[string]time.Duration{"server": cpuTime(b, s.command.Process.Pid)}
	}
	times := make(map[string]time.Duration, len(s.all))
	for _, p := range s.all {
		times[filepath.Base(p.command.Path)] += cpuTime(b, p.command.Process.Pid)
	}
	return times
}

// cpuTime is what a process has used of the cores, in ticks of 10 ms.
func cpuTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	var ticks int64
	for _, field := range fields[11:13] { // utime, stime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// binaryHeader is an inference over the binary extension: 128 bytes of
// tensors follow it.
const binaryHeader = `{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,16],"parameters":{"binary_data_size":64}},` +
	`{"name":"INPUT1","datatype":"INT32","shape":[1,16],"parameters":{"binary_data_size":64}}],"parameters":{"binary_data_output":true}}`

func (s *server) callHTTP(ctx context.Context) error {
	body := binaryHeader + string(make([]byte, 128))
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.HTTP+"/v2/models/simple/infer", strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Inference-Header-Content-Length", strconv.Itoa(len(binaryHeader)))
	response, err := benchClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", response.StatusCode)
	}
	return nil
}

// benchClient keeps a connection for each concurrent request.
var benchClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

func (s *server) callGRPC(b *testing.B) func(context.Context) error {
	b.Helper()
	raw := binary.LittleEndian.AppendUint32(make([]byte, 60), 7)
	return s.caller(b, &inference.ModelInferRequest{
		ModelName: "simple",
		Inputs: []*inference.ModelInferRequest_InferInputTensor{
			{Name: "INPUT0", Datatype: "INT32", Shape: []int64{1, 16}},
			{Name: "INPUT1", Datatype: "INT32", Shape: []int64{1, 16}},
		},
		RawInputContents: [][]byte{raw, raw},
	})
}

// caller makes the request again and again over one connection.
func (s *server) caller(b *testing.B, request *inference.ModelInferRequest) func(context.Context) error {
	b.Helper()
	connection, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = connection.Close() })
	client := inference.NewGRPCInferenceServiceClient(connection)
	return func(ctx context.Context) error {
		_, err := client.ModelInfer(ctx, request)
		return err
	}
}
