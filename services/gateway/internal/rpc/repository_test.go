package rpc_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/modelfiles"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

func TestLoadParametersAreChecked(t *testing.T) {
	s, ctx := serve(t), t.Context()
	text := &inference.ModelRepositoryParameter{ParameterChoice: &inference.ModelRepositoryParameter_StringParam{StringParam: "x"}}
	load := func(repository, key string) func() error {
		return func() error {
			_, err := s.client.RepositoryModelLoad(ctx, &inference.RepositoryModelLoadRequest{
				RepositoryName: repository, ModelName: "m", Parameters: map[string]*inference.ModelRepositoryParameter{key: text},
			})
			return err
		}
	}
	number := &inference.ModelRepositoryParameter{ParameterChoice: &inference.ModelRepositoryParameter_Int64Param{Int64Param: 1}}
	tests := map[string]struct {
		call func() error
		code codes.Code
		want string
	}{
		"a repository's name": {load("r", "config"), codes.Unimplemented, "'repository_name' specification is not supported"},
		"a file as text":      {load("", "file:f"), codes.InvalidArgument, "invalid value type for load parameter 'file:f', expected bytes_param."},
		"another parameter":   {load("", "x"), codes.InvalidArgument, "unrecognized load parameter 'x'."},
		"a configuration as a number": {func() error {
			_, err := s.client.RepositoryModelLoad(ctx, &inference.RepositoryModelLoadRequest{
				ModelName: "m", Parameters: map[string]*inference.ModelRepositoryParameter{"config": number},
			})
			return err
		}, codes.InvalidArgument, "invalid value type for load parameter 'config', expected string_param."},
		"dependents as a number": {func() error {
			_, err := s.client.RepositoryModelUnload(ctx, &inference.RepositoryModelUnloadRequest{
				ModelName: "m", Parameters: map[string]*inference.ModelRepositoryParameter{"unload_dependents": number},
			})
			return err
		}, codes.InvalidArgument, "invalid value type for 'unload_dependents' parameter, expected bool_param."},
		"without a registry": {load("", "config"), codes.Unavailable, "this gateway has no registry to load or unload models: ask one that has"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if err := tt.call(); status.Code(err) != tt.code || status.Convert(err).Message() != tt.want {
				t.Errorf("%v, want %v %q", err, tt.code, tt.want)
			}
		})
	}
}

func TestFilesOfALoadAreCountedBeforeTheyAreRead(t *testing.T) {
	s, ctx := serve(t), t.Context()
	// Empty entries have one key: once they are read nothing is left to count.
	entries := func(m proto.Message, n int) {
		m.ProtoReflect().SetUnknown([]byte(strings.Repeat("\x1a\x00", n)))
	}
	load := func(n int) error {
		r := &inference.RepositoryModelLoadRequest{ModelName: "m"}
		entries(r, n)
		_, err := s.client.RepositoryModelLoad(ctx, r)
		return err
	}
	unload := func(n int) error {
		r := &inference.RepositoryModelUnloadRequest{ModelName: "m"}
		entries(r, n)
		_, err := s.client.RepositoryModelUnload(ctx, r)
		return err
	}
	most := modelfiles.MaxLoadFiles + 1 // with the configuration
	text := fmt.Sprintf("more than %d files are given to load a model with: put models of more files into the repository", modelfiles.MaxLoadFiles)
	tests := map[string]struct {
		err  error
		code codes.Code
		want string
	}{
		"as many as there may be": {load(most), codes.InvalidArgument, "unrecognized load parameter ''."},
		"one more":                {load(most + 1), codes.ResourceExhausted, text},
		"an unload":               {unload(most + 1), codes.ResourceExhausted, text},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if status.Code(tt.err) != tt.code || status.Convert(tt.err).Message() != tt.want {
				t.Errorf("%v, want %v %q", tt.err, tt.code, tt.want)
			}
		})
	}
}
