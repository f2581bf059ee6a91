package rpc_test

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// Calls over TCP, of which eight are in flight at a time.
func BenchmarkModelInferOverTCP(b *testing.B) {
	for name, rows := range map[string]int{"small": 1, "1MiB": 8192} {
		b.Run(name, func(b *testing.B) {
			s := serve(b)
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			go func() { _ = s.server.Serve(listener) }()
			conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			client, m := inference.NewGRPCInferenceServiceClient(conn), addSub(rows)
			b.ReportAllocs()
			b.SetParallelism(4)
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					if _, err := client.ModelInfer(context.Background(), m); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
