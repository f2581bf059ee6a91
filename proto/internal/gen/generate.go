package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

// generate returns the generated files by their path relative to root.
func generate(ctx context.Context, root string) (map[string][]byte, error) {
	names, err := find(root, ".proto")
	if err != nil {
		return nil, err
	}
	request, err := compile(ctx, root, names)
	if err != nil {
		return nil, err
	}
	out := make(map[string][]byte)
	for _, plugin := range []string{"protoc-gen-go", "protoc-gen-go-grpc"} {
		if err := runPlugin(ctx, root, plugin, request, out); err != nil {
			return nil, fmt.Errorf("%s: %w", plugin, err)
		}
	}
	return out, nil
}

// find lists the files under root whose names end with suffix, as slash paths
// relative to root, sorted.
func find(root, suffix string) ([]string, error) {
	var names []string
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && strings.HasSuffix(name, suffix) {
			names = append(names, name)
		}
		return err
	})
	return names, err
}

// compile parses the named files and makes the request that protoc would
// send to its plugins.
func compile(ctx context.Context, root string, names []string) (*pluginpb.CodeGeneratorRequest, error) {
	compiler := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{
			ImportPaths: []string{root},
		}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(ctx, names...)
	if err != nil {
		return nil, err
	}
	request := &pluginpb.CodeGeneratorRequest{
		FileToGenerate: names,
		Parameter:      proto.String("paths=source_relative"),
	}
	seen := make(map[string]bool)
	for _, file := range files {
		request.ProtoFile = appendFile(request.ProtoFile, file, seen)
	}
	return request, nil
}

// appendFile adds file after the files it imports: plugins link them in the
// order in which they are sent.
func appendFile(list []*descriptorpb.FileDescriptorProto, file protoreflect.FileDescriptor, seen map[string]bool) []*descriptorpb.FileDescriptorProto {
	if seen[file.Path()] {
		return list
	}
	seen[file.Path()] = true
	imports := file.Imports()
	for i := range imports.Len() {
		list = appendFile(list, imports.Get(i).FileDescriptor, seen)
	}
	return append(list, protoutil.ProtoFromFileDescriptor(file))
}

// runPlugin runs one of the module's tools and adds what it generates to out.
func runPlugin(ctx context.Context, root, plugin string, request *pluginpb.CodeGeneratorRequest, out map[string][]byte) error {
	input, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, "go", "tool", plugin)
	command.Dir = root
	command.Stdin = bytes.NewReader(input)
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		return err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(output, &response); err != nil {
		return fmt.Errorf("read its answer: %w", err)
	}
	if response.Error != nil {
		return errors.New(response.GetError())
	}
	for _, file := range response.GetFile() {
		out[file.GetName()] = []byte(file.GetContent())
	}
	return nil
}

// staleFiles lists generated files under root that no definition gives any
// more.
func staleFiles(root string, files map[string][]byte) ([]string, error) {
	names, err := find(root, ".pb.go")
	if err != nil {
		return nil, err
	}
	var stale []string
	for _, name := range names {
		if _, ok := files[name]; !ok {
			stale = append(stale, name)
		}
	}
	return stale, nil
}
