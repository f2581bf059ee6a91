package rest

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/regions"
)

// sharedMemoryRoutes are the endpoints for shared memory. They apply to the regions of the caller's tenant.
func (s *server) sharedMemoryRoutes() []route {
	var routes []route
	for _, kind := range []regions.Kind{regions.System, regions.CUDA} {
		register := s.registerSystem
		if kind == regions.CUDA {
			register = s.registerCUDA
		}
		prefix := "/v2/" + string(kind) + "sharedmemory"
		status := func(c *call) error { return s.regionStatus(c, kind) }
		unregister := func(c *call) error { return s.unregister(c, kind) }
		routes = append(routes,
			route{method: http.MethodGet, pattern: prefix + "/status", api: core.SharedMemoryAPI, respond: status},
			route{method: http.MethodGet, pattern: prefix + "/region/{region}/status", api: core.SharedMemoryAPI, respond: status},
			route{method: http.MethodPost, pattern: prefix + "/register", api: core.SharedMemoryAPI, respond: func(*call) error { return regions.Unnamed(kind) }},
			route{method: http.MethodPost, pattern: prefix + "/region/{region}/register", api: core.SharedMemoryAPI, respond: register},
			route{method: http.MethodPost, pattern: prefix + "/unregister", api: core.SharedMemoryAPI, respond: unregister},
			route{method: http.MethodPost, pattern: prefix + "/region/{region}/unregister", api: core.SharedMemoryAPI, respond: unregister})
	}
	return routes
}

// regionOf returns the region that the path names, or an empty string.
func regionOf(c *call) (string, error) {
	name, err := url.PathUnescape(c.http.PathValue("region"))
	if err != nil {
		return "", notFound()
	}
	return name, nil
}

func (s *server) regionStatus(c *call, kind regions.Kind) error {
	name, err := regionOf(c)
	if err != nil {
		return err
	}
	list, err := s.options.Regions.Status(c.RegionOwner(), kind, name)
	if err != nil {
		return err
	}
	if kind == regions.CUDA {
		type entry struct {
			Name     string `json:"name"`
			Device   int64  `json:"device_id"`
			ByteSize uint64 `json:"byte_size"`
		}
		entries := make([]entry, len(list))
		for i, r := range list {
			entries[i] = entry{Name: r.Name, Device: r.Device, ByteSize: r.Size}
		}
		return reply(c.writer, entries)
	}
	type entry struct {
		Name     string `json:"name"`
		Key      string `json:"key"`
		Offset   uint64 `json:"offset"`
		ByteSize uint64 `json:"byte_size"`
	}
	entries := make([]entry, len(list))
	for i, r := range list {
		entries[i] = entry{Name: r.Name, Key: r.Key, Offset: r.Offset, ByteSize: r.Size}
	}
	return reply(c.writer, entries)
}

func (s *server) registerSystem(c *call) error {
	name, err := regionOf(c)
	if err != nil {
		return err
	}
	if err := s.options.Regions.Allowed(); err != nil {
		return err
	}
	r := regions.Region{Name: name}
	if err := readRegistration(c, field{"key", &r.Key, true}, field{"offset", &r.Offset, false}, field{"byte_size", &r.Size, true}); err != nil {
		return err
	}
	if err := s.options.Regions.Register(c.RegionOwner(), r); err != nil {
		return err
	}
	write(c.writer, http.StatusOK, nil)
	return nil
}

func (s *server) registerCUDA(c *call) error {
	name, err := regionOf(c)
	if err != nil {
		return err
	}
	if err := s.options.Regions.Allowed(); err != nil {
		return err
	}
	var handle struct {
		Base64 string `json:"b64"`
	}
	r := regions.Region{Name: name}
	if err := readRegistration(c, field{"raw_handle", &handle, true}, field{"byte_size", &r.Size, true}, field{"device_id", &r.Device, true}); err != nil {
		return err
	}
	raw, err := base64.StdEncoding.DecodeString(handle.Base64)
	if err != nil || len(raw) != regions.HandleBytes {
		return errs.New(errs.InvalidParameter, "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
	}
	if err := s.options.Regions.RegisterCUDA(c.Context(), c.RegionOwner(), r, raw); err != nil {
		return err
	}
	write(c.writer, http.StatusOK, nil)
	return nil
}

// field is a member of a registration: where to store it, and whether it is required.
type field struct {
	name     string
	to       any
	required bool
}

// readRegistration reads the members of a registration, in the order in which Triton checks them.
func readRegistration(c *call, fields ...field) error {
	if err := c.Account.Retain(maxControl); err != nil {
		return err
	}
	document, err := readControl(c.http.Body)
	if err != nil {
		return err
	}
	var members map[string]json.RawMessage
	if err := unmarshalObject(document, &members); err != nil {
		return err
	}
	for _, f := range fields {
		raw, given := members[f.name]
		switch {
		case !given && f.required:
			return errs.New(errs.InvalidParameter, "Shared memory register request has no '%s' field", f.name)
		case !given:
			continue
		}
		if err := json.Unmarshal(raw, f.to); err != nil || string(raw) == "null" {
			want := "non-object as object"
			switch f.to.(type) {
			case *string:
				want = "non-string as string"
			case *uint64:
				want = "non-unsigned-integer as unsigned-integer"
			case *int64:
				want = "non-signed-integer as signed-integer"
			}
			return errs.New(errs.InvalidJSON, "attempt to access JSON %s", want)
		}
	}
	return nil
}

func (s *server) unregister(c *call, kind regions.Kind) error {
	name, err := regionOf(c)
	if err != nil {
		return err
	}
	if err := s.options.Regions.Unregister(c.RegionOwner(), kind, name); err != nil {
		return err
	}
	write(c.writer, http.StatusOK, nil)
	return nil
}
