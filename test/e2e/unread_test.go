package e2e

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// hostile is a client's connection that is written by hand.
func hostile(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil { // or the test does not end
		t.Fatal(err)
	}
	return c
}

// bytesRequest is a request over HTTP with size bytes, which come back; its body has
// only what is given.
func bytesRequest(size int, body []byte) []byte {
	json := fmt.Sprintf(`{"inputs":[{"name":"x","datatype":"UINT8","shape":[%d],"parameters":{"binary_data_size":%d}}],"parameters":{"binary_data_output":true}}`, size, size)
	return append(fmt.Appendf(nil, "POST /v2/models/bytes/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nInference-Header-Content-Length: %d\r\n\r\n%s",
		len(json)+size, len(json), json), body...)
}

// trickle sends a body byte by byte, far too slowly, until the server ends it.
func trickle(t *testing.T, s *server) {
	c := hostile(t, s.HTTP)
	if _, err := c.Write(bytesRequest(10<<20, nil)); err != nil {
		t.Error(err)
	}
	ended := make(chan struct{})
	go func() {
		ticks := time.NewTicker(100 * time.Millisecond)
		defer ticks.Stop()
		for {
			select {
			case <-ticks.C:
				_, _ = c.Write([]byte("x")) // the reader sees the end
			case <-ended:
				return
			}
		}
	}()
	defer close(ended)
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Errorf("a body byte by byte: %v", err)
		return
	}
	defer r.Body.Close()
	if reason := r.Header.Get("Nereid-Reason"); r.StatusCode != http.StatusRequestTimeout || reason != "body_stalled" {
		t.Errorf("a body byte by byte: %d %s", r.StatusCode, reason)
	}
}

// readNothing asks for a large response over HTTP.
func readNothing(t *testing.T, s *server) {
	c := hostile(t, s.HTTP)
	if _, err := c.Write(bytesRequest(unreadBytes, make([]byte, unreadBytes))); err != nil {
		t.Error(err)
	}
}

// grantNothing makes calls over gRPC with a window of 0, and waits until the server has reset
// them all.
func grantNothing(t *testing.T, s *server, method string, stream bool, calls int) {
	c := hostile(t, s.GRPC)
	framer := http2.NewFramer(c, c)
	check := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	_, err := io.WriteString(c, http2.ClientPreface)
	check(err)
	// The responses of a call are flow-controlled, nothing else is.
	check(framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize}))
	message, err := proto.Marshal(&inference.ModelInferRequest{
		ModelName:        "bytes",
		Inputs:           []*inference.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "UINT8", Shape: []int64{1 << 20}}},
		RawInputContents: [][]byte{make([]byte, 1<<20)},
	})
	check(err)
	message = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	over := make(chan error, 1)
	granted := make(chan int, 1<<16) // windows of the connection
	go func() {
		for ended := 0; ended < calls; {
			frame, err := framer.ReadFrame()
			if err != nil {
				over <- err
				return
			}
			switch f := frame.(type) {
			case *http2.WindowUpdateFrame:
				if f.StreamID == 0 {
					granted <- int(f.Increment)
				}
			case *http2.HeadersFrame:
				if f.StreamEnded() {
					ended++
				}
			}
		}
		over <- nil
	}()
	window := 65535
	for i := range calls {
		id := uint32(2*i + 1)
		var block bytes.Buffer
		headers := hpack.NewEncoder(&block)
		for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
			check(headers.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}))
		}
		check(framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true}))
		for left := message; len(left) > 0; {
			for window < 16<<10 {
				window += <-granted
			}
			n := min(len(left), 16<<10)
			check(framer.WriteData(id, n == len(left) && !stream, left[:n]))
			left, window = left[n:], window-n
		}
	}
	if err := <-over; err != nil {
		t.Errorf("%s without a window: not all calls are reset: %v", method, err)
	}
}

const unreadBytes = 48 << 20

// TestClientsThatTakeNothingAreGivenUp has hostile clients of every kind at once, and
// a good one.
func TestClientsThatTakeNothingAreGivenUp(t *testing.T) {
	inOneProcess(t)
	const budget, overhead, deaf = 256 << 20, 128 << 20, 3
	model := `backend: "echo" input [{ name: "x" data_type: TYPE_UINT8 dims: [-1] }] output [{ name: "y" data_type: TYPE_UINT8 dims: [-1] }]`
	s := start(t, repository(t, map[string]string{"m/config.pbtxt": echo(0), "m/1/.keep": "", "bytes/config.pbtxt": model, "bytes/1/.keep": ""}),
		"--max-request-bytes="+strconv.Itoa(budget), "--stall-timeout-secs=4")
	s.infer(t, "m", 200)
	before := peakMemory(t, s.process.command.Process.Pid)
	ended := make(chan struct{}, 8)
	attack := func(f func()) {
		go func() {
			defer func() { ended <- struct{}{} }()
			f()
		}()
	}
	attack(func() { trickle(t, s) })
	attack(func() { grantNothing(t, s, inference.GRPCInferenceService_ModelInfer_FullMethodName, false, 8) })
	attack(func() { grantNothing(t, s, inference.GRPCInferenceService_ModelStreamInfer_FullMethodName, true, 1) })
	for range deaf {
		readNothing(t, s)
	}
	for range 3 {
		s.infer(t, "m", 200)
		<-ended
	}
	s.wantMetrics(
		fmt.Sprintf(`nereid_gateway_errors_total{protocol="http",reason="response_stalled"} %d`, deaf),
		`nereid_gateway_errors_total{protocol="grpc",reason="response_stalled"} 9`,
		"nereid_gateway_in_flight_requests 0",
	)
	if more := peakMemory(t, s.process.command.Process.Pid) - before; more > budget+overhead {
		t.Errorf("%d MiB more than before, of a budget of %d MiB", more>>20, budget>>20)
	}
	s.infer(t, "m", 200)
}
