package rpc

import (
	"context"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
)

// filePrefix starts the keys of load parameters that carry files.
const filePrefix = "file:"

// RepositoryModelLoad implements the RPC.
func (s *service) RepositoryModelLoad(ctx context.Context, r *inference.RepositoryModelLoadRequest) (*inference.RepositoryModelLoadResponse, error) {
	if r.GetRepositoryName() != "" {
		return nil, repositoryNamed()
	}
	request := core.LoadRequest{Model: r.GetModelName()}
	for key, value := range r.GetParameters() {
		if err := setLoadParameter(&request, key, value); err != nil {
			return nil, err
		}
	}
	return &inference.RepositoryModelLoadResponse{}, s.gateway.LoadModel(ctx, request)
}

func setLoadParameter(request *core.LoadRequest, key string, value *inference.ModelRepositoryParameter) error {
	file, isFile := strings.CutPrefix(key, filePrefix)
	switch {
	case key == "config":
		text, ok := value.GetParameterChoice().(*inference.ModelRepositoryParameter_StringParam)
		if !ok {
			return wrongLoadType(key, "string_param")
		}
		request.Config, request.HasConfig = text.StringParam, true
	case isFile:
		data, ok := value.GetParameterChoice().(*inference.ModelRepositoryParameter_BytesParam)
		if !ok {
			return wrongLoadType(key, "bytes_param")
		}
		if request.Files == nil {
			request.Files = make(map[string][]byte)
		}
		request.Files[file] = data.BytesParam
	default:
		return errs.New(errs.InvalidParameter, "unrecognized load parameter '%s'.", key)
	}
	return nil
}

func wrongLoadType(key, want string) error {
	return errs.New(errs.InvalidParameter, "invalid value type for load parameter '%s', expected %s.", key, want)
}

// RepositoryModelUnload implements the RPC.
func (s *service) RepositoryModelUnload(ctx context.Context, r *inference.RepositoryModelUnloadRequest) (*inference.RepositoryModelUnloadResponse, error) {
	if r.GetRepositoryName() != "" {
		return nil, repositoryNamed()
	}
	dependents := false
	if value, ok := r.GetParameters()["unload_dependents"]; ok {
		given, ok := value.GetParameterChoice().(*inference.ModelRepositoryParameter_BoolParam)
		if !ok {
			return nil, wrongType("unload_dependents", "bool_param")
		}
		if dependents = given.BoolParam; dependents {
			if err := path.CallOf(ctx).PermitAll(); err != nil {
				return nil, err
			}
		}
	}
	return &inference.RepositoryModelUnloadResponse{}, s.gateway.UnloadModel(ctx, r.GetModelName(), dependents)
}

func repositoryNamed() error {
	return errs.New(errs.Unsupported, "'repository_name' specification is not supported")
}
