package schedule_test

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/plane/schedule"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// idle is a scheduler whose gateways only say who they are.
type idle struct{ schedule.Backend }

func (idle) Leave(uint64) {}

// TestGatewaysOfOtherReleases has a gateway of the release before, and one of
// the next, which says more in its hello, take up their streams.
func TestGatewaysOfOtherReleases(t *testing.T) {
	server, peers := serve(t)
	server.Serve(7, idle{})
	conn, err := grpc.NewClient("passthrough:///"+peers["tcp"].Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	for name, tt := range map[string]struct {
		protocol uint32
		unknown  []byte
		want     codes.Code
	}{
		"one that speaks less than this one can": {link.Protocol - 1, nil, codes.FailedPrecondition},
		"one that speaks the same":               {link.Protocol, nil, codes.OK},
		"one that speaks more and says more":     {link.Protocol + 1, protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 5), codes.OK},
	} {
		t.Run(name, func(t *testing.T) {
			calls, err := nereidv1.NewSchedulerServiceClient(conn).Submit(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			hello := &nereidv1.GatewayHello{Protocol: tt.protocol, GatewayId: "g", Gateway: uint64(len(name)), Release: "0.9.0"}
			hello.ProtoReflect().SetUnknown(tt.unknown)
			err = calls.Send(&nereidv1.GatewayEnvelope{Messages: []*nereidv1.GatewayMessage{{Message: &nereidv1.GatewayMessage_Hello{Hello: hello}}}})
			if err != nil {
				t.Fatal(err)
			}
			answer, err := calls.Recv()
			if status.Code(err) != tt.want {
				t.Fatalf("answered with %v, want %v", err, tt.want)
			}
			if tt.want != codes.OK {
				return
			}
			if h := answer.GetMessages()[0].GetHello(); h.GetProtocol() != link.Protocol || h.GetEpoch() != 7 {
				t.Errorf("the scheduler's hello is %v", h)
			}
			_ = calls.CloseSend()
		})
	}
}
