package schedule_test

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/link"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// A peer that says what it may not ends its own stream, and nobody else's.
func TestPeersThatBreakTheContractEndTheirOwnStream(t *testing.T) {
	s, peers := serve(t)
	b := newBackend(3)
	s.Serve(3, b)
	ev, ex := newEvents(), newExecutor()
	g, w := dialBoth(t, peers["tcp"], ev, ex)
	<-b.attached
	conn, err := grpc.NewClient("passthrough:///"+peers["tcp"].Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	client := nereidv1.NewSchedulerServiceClient(conn)

	gateway := func(m *nereidv1.GatewayMessage) error {
		calls, err := client.Submit(t.Context())
		if err != nil {
			return err
		}
		hello := &nereidv1.GatewayMessage{Message: &nereidv1.GatewayMessage_Hello{Hello: &nereidv1.GatewayHello{Protocol: link.Protocol, Gateway: 99}}}
		for _, m := range []*nereidv1.GatewayMessage{hello, m} {
			_ = calls.Send(&nereidv1.GatewayEnvelope{Messages: []*nereidv1.GatewayMessage{m}}) // receiving says why it fails
		}
		for err == nil {
			_, err = calls.Recv()
		}
		return err
	}
	worker := func(m *nereidv1.WorkerMessage) error {
		calls, err := client.Work(t.Context())
		if err != nil {
			return err
		}
		hello := &nereidv1.WorkerMessage{Message: &nereidv1.WorkerMessage_Hello{Hello: &nereidv1.WorkerHello{Protocol: link.Protocol, Worker: 98}}}
		for _, m := range []*nereidv1.WorkerMessage{hello, m} {
			_ = calls.Send(&nereidv1.WorkerEnvelope{Messages: []*nereidv1.WorkerMessage{m}})
		}
		for err == nil {
			_, err = calls.Recv()
		}
		return err
	}
	foreign := &nereidv1.WorkId{Request: &nereidv1.RequestId{Origin: 5, Number: 1}}
	for name, err := range map[string]error{
		"another gateway's request": gateway(&nereidv1.GatewayMessage{Message: &nereidv1.GatewayMessage_Submit{
			Submit: &nereidv1.SubmitRequest{Descriptor_: &nereidv1.Descriptor{Work: foreign}},
		}}),
		"another gateway's cancellation": gateway(&nereidv1.GatewayMessage{Message: &nereidv1.GatewayMessage_Cancel{Cancel: &nereidv1.CancelRequest{Work: foreign}}}),
		"no message":                     gateway(&nereidv1.GatewayMessage{}),
		"a second hello":                 gateway(&nereidv1.GatewayMessage{Message: &nereidv1.GatewayMessage_Hello{Hello: &nereidv1.GatewayHello{}}}),
		"another worker's grant": worker(&nereidv1.WorkerMessage{Message: &nereidv1.WorkerMessage_Grant{
			Grant: &nereidv1.Grant{Instance: &nereidv1.InstanceId{Worker: 7}},
		}}),
		"the end of no batch": worker(&nereidv1.WorkerMessage{Message: &nereidv1.WorkerMessage_InstanceFree{
			InstanceFree: &nereidv1.InstanceFree{Batch: 4, Instance: &nereidv1.InstanceId{Worker: 98}},
		}}),
		"the return of no batch": worker(&nereidv1.WorkerMessage{Message: &nereidv1.WorkerMessage_BatchReturned{BatchReturned: &nereidv1.BatchReturned{Batch: 4}}}),
	} {
		if status.Code(err) != codes.Internal {
			t.Errorf("%s: %v", name, err)
		}
	}
	b.Attach(7, infer.Held{}, ex) // the last of them took its place with this backend, which knows of one
	if err := g.Submit(request(1)); err != nil {
		t.Fatal(err)
	}
	<-ex.orders
	select {
	case <-w.Done():
		t.Errorf("the worker's stream ended: %v", w.Err())
	default:
	}
}
