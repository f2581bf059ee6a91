package link_test

import (
	"fmt"
	"net"
	"path/filepath"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/plane/link"
)

// BenchmarkEnvelope sends small messages that are ready together, so many in
// one gRPC message: 1 is what no envelopes would cost. Times are for each
// message, processor time is that of both ends.
func BenchmarkEnvelope(b *testing.B) {
	for _, size := range []int{1, 4, 16, 64} {
		b.Run(fmt.Sprint(size), func(b *testing.B) { sendEnvelopes(b, size) })
	}
}

func sendEnvelopes(b *testing.B, size int) {
	received := make(chan error, 1)
	server := grpc.NewServer(append(link.ServerOptions(nil, nil), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		var envelope mem.BufferSlice
		for n := 0; n < b.N; n += size {
			if err := s.RecvMsg(&envelope); err != nil {
				received <- err
				return err
			}
			envelope.Free()
		}
		received <- nil
		return nil
	}))...)
	path := filepath.Join(b.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = server.Serve(l) }() // ends with Stop
	defer server.Stop()
	connection, err := link.Connect(link.Peer{Address: "unix:" + path})
	if err != nil {
		b.Fatal(err)
	}
	defer connection.Close()
	conn, err := connection.NewStream(b.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/s/m")
	if err != nil {
		b.Fatal(err)
	}
	w := codec.NewWriter(new(codec.Spares))
	before := cpu(b)
	b.ResetTimer()
	for n := 0; n < b.N; n += size {
		for range size {
			if err := w.Placed(infer.Work{Request: infer.RequestID{Origin: 1 << 20, Number: uint64(n)}, Attempt: 1, Epoch: 1 << 20}, 1<<20); err != nil {
				b.Fatal(err)
			}
		}
		if err := conn.SendMsg(w.Take()); err != nil {
			b.Fatal(err)
		}
	}
	if err := <-received; err != nil {
		b.Fatal(err)
	}
	b.ReportMetric((cpu(b)-before)/float64(b.N), "cpu-us/op")
}

// cpu is the processor time of the process in microseconds.
func cpu(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e3
}
