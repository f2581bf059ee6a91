package rpc_test

import (
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
)

// taken are the stages that a call takes.
type taken struct {
	mu     sync.Mutex
	stages []string // guarded by mu
}

func (k *taken) take() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	stages := k.stages
	k.stages = nil
	return stages
}

// recorded returns the stages, which are noted when a call takes them.
func (k *taken) recorded() []path.Stage {
	stages := path.Stages()
	for i := range stages {
		name, run := stages[i].Name, stages[i].Run
		stages[i].Run = func(c *path.Call) error {
			k.mu.Lock()
			k.stages = append(k.stages, name)
			k.mu.Unlock()
			return run(c)
		}
	}
	return stages
}

// invoke calls a method with an empty message, or an inference of the model
// add_sub, and returns its error.
func (s *server) invoke(method string) error {
	var in any = &emptypb.Empty{}
	if strings.HasSuffix(method, "/ModelInfer") || strings.HasSuffix(method, "/ModelStreamInfer") {
		in = addSub(1)
	}
	// Every method can be called as a stream, whatever it is.
	stream, err := s.conn.NewStream(s.t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(in); err != nil && !errors.Is(err, io.EOF) { // EOF: it has ended, and why comes next
		return err
	}
	if strings.HasSuffix(method, "/ModelStreamInfer") {
		if err := stream.RecvMsg(new(emptypb.Empty)); err != nil { // before the stream ends
			return err
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for err == nil {
		err = stream.RecvMsg(new(emptypb.Empty))
	}
	return err
}

// Every method of every service takes the stages: inferences all of them, other
// calls those of all calls.
func TestEveryMethodTakesItsStages(t *testing.T) {
	var k taken
	s := serveWith(t, rpc.Options{Cluster: asked{}, Options: path.Options{Stages: k.recorded()}})
	var all, every []string
	for _, stage := range path.Stages() {
		if all = append(all, stage.Name); stage.Every {
			every = append(every, stage.Name)
		}
	}
	services := s.server.GetServiceInfo()
	if len(services) != 5 {
		t.Errorf("%d services are walked", len(services))
	}
	for service, info := range services {
		for _, m := range info.Methods {
			method := "/" + service + "/" + m.Name
			_ = s.invoke(method)
			want := every
			switch m.Name {
			case "ModelInfer":
				want = all
			case "ModelStreamInfer": // the stream, and its request
				want = slices.Concat(every, all)
			}
			if diff := cmp.Diff(want, k.take()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", method, diff)
			}
		}
	}
}

// Where every API is restricted no method of any service responds without the
// header, and one that does not exist is unimplemented to everybody.
func TestEveryMethodIsRestricted(t *testing.T) {
	restricted := make(core.Restrictions)
	for _, api := range core.APIs() {
		restricted[api] = core.Secret{Header: "key", Value: "secret"}
	}
	s := serveWith(t, rpc.Options{Cluster: asked{}, Options: path.Options{Restricted: restricted}})
	for service, info := range s.server.GetServiceInfo() {
		for _, m := range info.Methods {
			err := s.invoke("/" + service + "/" + m.Name)
			if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "is restricted") {
				t.Errorf("/%s/%s: %v", service, m.Name, err)
			}
		}
		if err := s.invoke("/" + service + "/Unknown"); status.Code(err) != codes.Unimplemented {
			t.Errorf("an unknown method of %s: %v", service, err)
		}
	}
}
