package rpc_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

func TestSchemaCanBeAskedFor(t *testing.T) {
	s := serve(t)
	stream, err := reflectionv1.NewServerReflectionClient(s.conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask := func(r *reflectionv1.ServerReflectionRequest) *reflectionv1.ServerReflectionResponse {
		t.Helper()
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
		response, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return response
	}
	var services []string
	for _, service := range ask(&reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{},
	}).GetListServicesResponse().GetService() {
		services = append(services, service.GetName())
	}
	slices.Sort(services)
	want := []string{
		"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection",
		"inference.GRPCInferenceService",
	}
	if diff := cmp.Diff(want, services); diff != "" {
		t.Errorf("services (-want +got):\n%s", diff)
	}

	// A client that knows nothing builds its calls from these files.
	files := new(descriptorpb.FileDescriptorSet)
	for _, encoded := range ask(&reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "inference.GRPCInferenceService"},
	}).GetFileDescriptorResponse().GetFileDescriptorProto() {
		file := new(descriptorpb.FileDescriptorProto)
		if err := proto.Unmarshal(encoded, file); err != nil {
			t.Fatal(err)
		}
		files.File = append(files.File, file)
	}
	schema, err := protodesc.NewFiles(files)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []protoreflect.FullName{"inference.GRPCInferenceService.ModelInfer", "inference.ModelConfig"} {
		if _, err := schema.FindDescriptorByName(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
}
