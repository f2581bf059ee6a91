package perf

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/errs"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// sharedDir is where POSIX has shared memory.
const sharedDir = "/dev/shm"

// registering bounds the registration of a region.
const registering = 10 * time.Second

// sharedMemory are the regions in which the tensors of a bench are. Each class has one for the inputs of
// all its requests, and one for its outputs, which all its requests write: nobody reads them.
type sharedMemory struct {
	prefix  string
	regions []region
	clients []client.Client
}

// region is one whose file is there.
type region struct {
	name   string
	server client.Client // that has registered it; nil for none
}

// connect returns a client that registers the regions of a class: they belong to its caller.
func (s *sharedMemory) connect(t *Target, c *Class) (server client.Client, err error) {
	o := client.Options{TLS: t.TLS, Header: c.Header}
	if t.Protocol == HTTP {
		server = client.HTTP(t.Address, o)
	} else if server, err = client.GRPC(t.Address, o); err != nil {
		return nil, err
	}
	s.clients = append(s.clients, server)
	return server, nil
}

// add makes a region of so many bytes that begins with the content, and registers it.
func (s *sharedMemory) add(ctx context.Context, server client.Client, content []byte, size int64) (string, error) {
	name := fmt.Sprintf("%s-%d", s.prefix, len(s.regions))
	path := filepath.Join(sharedDir, name)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", errs.Wrap(errs.ConfigInvalid, err, "--shared-memory=system: the region %s cannot be made", path)
	}
	defer file.Close()
	s.regions = append(s.regions, region{name: name})
	if _, err := file.Write(content); err != nil {
		return "", errs.Wrap(errs.ConfigInvalid, err, "--shared-memory=system: the region %s cannot be written", path)
	}
	if err := file.Truncate(size); err != nil {
		return "", errs.Wrap(errs.ConfigInvalid, err, "--shared-memory=system: the region %s cannot be made %d bytes large", path, size)
	}
	ctx, cancel := context.WithTimeout(ctx, registering)
	defer cancel()
	if err := server.RegisterMemory(ctx, name, "/"+name, size); err != nil {
		return "", errs.Wrap(errs.ConfigInvalid, err, "the server does not register shared memory: %v", err)
	}
	s.regions[len(s.regions)-1].server = server
	return name, nil
}

// close unregisters the regions, and removes their files in any case.
func (s *sharedMemory) close() error {
	if s == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), registering)
	defer cancel()
	var all []error
	for _, r := range s.regions {
		if r.server != nil {
			all = append(all, r.server.UnregisterMemory(ctx, r.name))
		}
		all = append(all, os.Remove(filepath.Join(sharedDir, r.name)))
	}
	for _, c := range s.clients {
		all = append(all, c.Close())
	}
	return errors.Join(all...)
}

// place puts the tensors of a class's requests into regions, and gives each request its message.
func (s *sharedMemory) place(ctx context.Context, t *Target, c *Class) error {
	server, err := s.connect(t, c)
	if err != nil {
		return err
	}
	var content []byte
	for i := range c.Items {
		for j := range c.Items[i] {
			for _, in := range c.Items[i][j].Inputs {
				content = append(content, in.Data...)
			}
		}
	}
	inputs, err := s.add(ctx, server, content, int64(max(len(content), 1)))
	if err != nil {
		return err
	}
	outputs, err := s.add(ctx, server, nil, max(int64(len(c.Outputs)), 1)*c.OutputSize)
	if err != nil {
		return err
	}
	offset := int64(0)
	items := make([][]Item, len(c.Items)) // classes share theirs
	for i := range c.Items {
		items[i] = slices.Clone(c.Items[i])
		for j := range items[i] {
			item := &items[i][j]
			item.placed = item.message(c)
			item.placed.RawInputContents = nil
			for k, in := range item.placed.GetInputs() {
				n := int64(len(item.Inputs[k].Data))
				in.Parameters = placed(inputs, offset, n)
				offset += n
			}
			for k, name := range c.Outputs {
				item.placed.Outputs = append(item.placed.Outputs, &inference.ModelInferRequest_InferRequestedOutputTensor{
					Name: name, Parameters: placed(outputs, int64(k)*c.OutputSize, c.OutputSize),
				})
			}
		}
	}
	c.Items = items
	return nil
}

// placed are the parameters of a tensor in a region.
func placed(region string, offset, size int64) map[string]*inference.InferParameter {
	integer := func(n int64) *inference.InferParameter {
		return &inference.InferParameter{ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: n}}
	}
	return map[string]*inference.InferParameter{
		"shared_memory_region":    {ParameterChoice: &inference.InferParameter_StringParam{StringParam: region}},
		"shared_memory_offset":    integer(offset),
		"shared_memory_byte_size": integer(size),
	}
}
