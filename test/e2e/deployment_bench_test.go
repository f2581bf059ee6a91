package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// BenchmarkDeployments measures what services as processes cost over one
// process, with the same load from the same clients: the time of a request,
// and the CPU time of each process for it. The echo model answers with its
// input, at once or after the time of a model of 5 ms, so that nothing but the
// way of requests and tensors differs.
func BenchmarkDeployments(b *testing.B) {
	repository := echoModels(b)
	for _, deployment := range []struct {
		name  string
		start func(testing.TB) *server
	}{
		{"one", func(t testing.TB) *server { return start(t, repository) }},
		{"unix", func(t testing.TB) *server { return startCluster(t, repository) }},
		{"tcp", func(t testing.TB) *server {
			return startServices(t, repository, func(string) string { return "127.0.0.1:0" }, "--share-memory=false")
		}},
	} {
		b.Run(deployment.name, func(b *testing.B) {
			s := deployment.start(b)
			defer s.stop()
			for _, load := range []struct {
				model              string
				bytes, concurrency int
			}{
				{"now", 1 << 10, 1},
				{"now", 1 << 10, 16},
				{"now", 600 << 10, 1},
				{"now", 600 << 10, 8},
				{"now", 4 << 20, 1},
				{"now", 4 << 20, 4},
				{"after_5ms", 1 << 10, 16},
				{"after_5ms", 600 << 10, 16},
			} {
				call := s.caller(b, &inference.ModelInferRequest{
					ModelName:        load.model,
					Inputs:           []*inference.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "INT8", Shape: []int64{int64(load.bytes)}}},
					RawInputContents: [][]byte{make([]byte, load.bytes)},
				})
				b.Run(fmt.Sprintf("%s/bytes=%d/concurrency=%d", load.model, load.bytes, load.concurrency), func(b *testing.B) {
					s.measure(b, load.concurrency, call)
				})
			}
		})
	}
}

// BenchmarkWorkers measures what a request costs the scheduler of a pool that
// has few or many workers, which answer at once: its share of the CPU time is
// that of one decision and of the messages about it.
func BenchmarkWorkers(b *testing.B) {
	repository := echoModels(b)
	for _, workers := range []int{1, 4, 16, 64} {
		b.Run(strconv.Itoa(workers), func(b *testing.B) {
			s := startCluster(b, repository)
			sockets := socketDir(b)
			for n := range workers - 1 {
				id := fmt.Sprintf("worker-%d", n)
				s.all = append(s.all, run(b, "worker", "--log-format=json", "--nats-url="+s.all[0].said().NATS, "--id="+id, "--leave-timeout-secs=0",
					"--metrics-address=127.0.0.1", "--metrics-port=0", "--listen=unix:"+filepath.Join(sockets, id)))
			}
			for _, p := range s.all[len(s.all)-workers+1:] {
				p.expect("attached to the pool's scheduler")
			}
			call := s.caller(b, &inference.ModelInferRequest{
				ModelName:        "now",
				Inputs:           []*inference.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "INT8", Shape: []int64{16}}},
				RawInputContents: [][]byte{make([]byte, 16)},
			})
			for _, concurrency := range []int{1, 64} {
				b.Run(fmt.Sprintf("concurrency=%d", concurrency), func(b *testing.B) { s.measure(b, concurrency, call) })
			}
			s.stop()
		})
	}
}

// echoModels makes a repository of models that answer with what they get: one
// at once, another with four instances after 5 ms.
func echoModels(b *testing.B) string {
	b.Helper()
	repository := b.TempDir()
	for name, rest := range map[string]string{
		"now":       "",
		"after_5ms": `instance_group [ { count: 4 } ] parameters { key: "execute_us" value { string_value: "5000" } }`,
	} {
		if err := os.MkdirAll(filepath.Join(repository, name, "1"), 0o755); err != nil {
			b.Fatal(err)
		}
		config := `backend: "echo" input { name: "x" data_type: TYPE_INT8 dims: [ -1 ] } output { name: "y" data_type: TYPE_INT8 dims: [ -1 ] } ` + rest
		if err := os.WriteFile(filepath.Join(repository, name, "config.pbtxt"), []byte(config), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	return repository
}
