package e2e

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// folded sends a message that was compressed before, whatever it is given.
type folded struct {
	encoding string
	message  []byte
}

func (f folded) Type() string { return f.encoding }

func (f folded) Do(w io.Writer, _ []byte) error {
	_, err := w.Write(f.message)
	return err
}

// peakMemory is the most memory that a process has had, in bytes.
func peakMemory(t *testing.T, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("no VmHWM in %s", text)
	}
	kib, err := strconv.ParseInt(string(found[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// TestTextsOfRequestsAreBounded sends parameters about as large as they may be, and
// larger ones. Others that are under way at the same time are not harmed.
func TestTextsOfRequestsAreBounded(t *testing.T) {
	s := start(t, repository(t, map[string]string{"m/config.pbtxt": echo(0), "m/1/.keep": ""}))
	connection, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	client := inference.NewGRPCInferenceServiceClient(connection)
	ask := func(bytes int) (http int, rpc codes.Code) {
		text := strings.Repeat("x", bytes)
		http, _ = s.do("POST", s.HTTP+"/v2/models/m/infer", strings.Replace(one, "{", `{"parameters":{"p":"`+text+`"},`, 1))
		_, err := client.ModelInfer(t.Context(), &inference.ModelInferRequest{
			ModelName:        "m",
			Parameters:       map[string]*inference.InferParameter{"p": {ParameterChoice: &inference.InferParameter_StringParam{StringParam: text}}},
			Inputs:           []*inference.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "INT32", Shape: []int64{1, 1}}},
			RawInputContents: [][]byte{make([]byte, 4)},
		})
		return http, status.Code(err)
	}
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 10 {
				s.infer(t, "m", 200)
			}
		})
		group.Go(func() {
			if http, rpc := ask(1<<20 - 1000); http != 200 || rpc != codes.OK {
				t.Errorf("1000 bytes less than the most: %d and %v", http, rpc)
			}
			if http, rpc := ask(1 << 20); http != 413 || rpc != codes.ResourceExhausted {
				t.Errorf("more than the most: %d and %v", http, rpc)
			}
		})
	}
	group.Wait()
}

// TestMessagesThatUnfoldStayInTheBudget sends small messages that become large ones
// all at once.
func TestMessagesThatUnfoldStayInTheBudget(t *testing.T) {
	inOneProcess(t)
	const budget, overhead, unfolded, calls = 256 << 20, 96 << 20, 250 << 20, 8
	message, err := proto.Marshal(&inference.ModelInferRequest{ModelName: "m", RawInputContents: [][]byte{make([]byte, unfolded)}})
	if err != nil {
		t.Fatal(err)
	}
	for encoding, compress := range map[string]func(io.Writer) io.WriteCloser{
		"gzip":    func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
		"deflate": func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) },
	} {
		t.Run(encoding, func(t *testing.T) {
			s := start(t, repository(t, map[string]string{"m/config.pbtxt": echo(0), "m/1/.keep": ""}), "--max-request-bytes="+strconv.Itoa(budget))
			s.infer(t, "m", 200)
			before := peakMemory(t, s.process.command.Process.Pid)
			var small bytes.Buffer
			w := compress(&small)
			if _, err := w.Write(message); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			connection, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithCompressor(folded{encoding, small.Bytes()})) //nolint:staticcheck // it alone can be given the bytes
			if err != nil {
				t.Fatal(err)
			}
			defer connection.Close()
			client := inference.NewGRPCInferenceServiceClient(connection)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			var running sync.WaitGroup
			for range calls {
				running.Go(func() {
					if _, err := client.ModelInfer(ctx, &inference.ModelInferRequest{ModelName: "m"}); status.Code(err) != codes.ResourceExhausted {
						t.Errorf("%v, want RESOURCE_EXHAUSTED", err)
					}
				})
			}
			running.Wait()
			if more := peakMemory(t, s.process.command.Process.Pid) - before; more > budget+overhead {
				t.Errorf("%d MiB more than before, of a budget of %d MiB", more>>20, budget>>20)
			} else {
				t.Logf("%d messages of %d KiB took %d MiB more than before", calls, small.Len()>>10, more>>20)
			}
			s.infer(t, "m", 200)
		})
	}
}

// TestIdleConnectionsAndStreamsAreBounded has clients open what they never use.
func TestIdleConnectionsAndStreamsAreBounded(t *testing.T) {
	inOneProcess(t)
	s := start(t, repository(t, map[string]string{"m/config.pbtxt": echo(0), "m/1/.keep": ""}),
		"--grpc-max-connections=4", "--http-max-connections=4", "--grpc-max-concurrent-streams=16")
	connection, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	client := inference.NewGRPCInferenceServiceClient(connection)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 16 {
		if _, err := client.ModelStreamInfer(ctx); err != nil {
			t.Fatal(err)
		}
	}
	// The client itself waits with the next one, and goes on when one ends.
	waiting := make(chan error, 1)
	go func() {
		_, err := client.ServerLive(t.Context(), &inference.ServerLiveRequest{})
		waiting <- err
	}()
	for _, address := range []string{s.GRPC, s.HTTP} {
		closed := make(chan struct{}, 8)
		for range cap(closed) {
			c, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			go func() {
				_, _ = io.Copy(io.Discard, c)
				closed <- struct{}{}
			}()
		}
		for range 4 { // or the test does not end
			<-closed
		}
	}
	select {
	case err := <-waiting:
		t.Errorf("a call beyond the bound was made: %v", err)
	default:
	}
	cancel()
	if err := <-waiting; err != nil {
		t.Errorf("after the streams: %v", err)
	}
}
