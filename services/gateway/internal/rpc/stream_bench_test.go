package rpc_test

import (
	"context"
	"testing"
)

// Requests of one stream, of which 32 are in flight.
func BenchmarkModelStreamInfer(b *testing.B) {
	for name, rows := range map[string]int{"small": 1, "600KiB": 4800} {
		b.Run(name, func(b *testing.B) {
			s := serve(b)
			stream, err := s.client.ModelStreamInfer(context.Background())
			if err != nil {
				b.Fatal(err)
			}
			m := addSub(rows)
			b.ReportAllocs()
			const depth = 32
			sent, received := 0, 0
			for b.Loop() {
				for sent-received < depth {
					if err := stream.Send(m); err != nil {
						b.Fatal(err)
					}
					sent++
				}
				if _, err := stream.Recv(); err != nil {
					b.Fatal(err)
				}
				received++
			}
			b.StopTimer()
			_ = stream.CloseSend()
			for ; received < sent; received++ {
				_, _ = stream.Recv()
			}
		})
	}
}
