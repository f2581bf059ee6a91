package main

import (
	"strconv"
	"strings"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/embedded"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/registry"
)

// backends reads the settings of backends and host policies.
func (s *serve) backends(c *embedded.Config) (err error) {
	if c.Worker.Backends, err = named("backend-config", s.BackendConfig); err != nil {
		return err
	}
	if c.Worker.HostPolicies, err = named("host-policy", s.HostPolicy); err != nil {
		return err
	}
	for key, value := range c.Worker.Backends[""] {
		if key != maxBatch {
			return errs.New(errs.ConfigInvalid, "--backend-config=,%s=%s: backends have one setting in common, %s", key, value, maxBatch)
		}
	}
	if err := setMaxBatchSize(&c.Registry.Models, c.Worker.Backends); err != nil {
		return err
	}
	delete(c.Worker.Backends, "")
	return nil
}

// maxBatch is the setting of backends that configurations are completed by.
const maxBatch = "default-max-batch-size"

// setMaxBatchSize reads it from settings by backend. What is set for the one
// backend goes before what is set for all.
func setMaxBatchSize(m *registry.Models, backends map[string]map[string]string) error {
	for _, backend := range []string{"", "onnxruntime"} {
		value, ok := backends[backend][maxBatch]
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil || n < 0 {
			return errs.New(errs.ConfigInvalid, "--backend-config=%s,%s=%s: it is a number of rows, 0 or more", backend, maxBatch, value)
		}
		m.MaxBatchSize = int(n)
	}
	return nil
}

// named reads values such as name,key=value into settings by name. A later
// value replaces an earlier one.
func named(flag string, values []string) (map[string]map[string]string, error) {
	all := make(map[string]map[string]string)
	for _, text := range values {
		name, setting, ok := strings.Cut(text, ",")
		key, value, assigned := strings.Cut(setting, "=")
		if !ok || !assigned || key == "" {
			return nil, errs.New(errs.ConfigInvalid, "--%s=%s: want a name and a setting, such as NAME,KEY=VALUE", flag, text)
		}
		if all[name] == nil {
			all[name] = make(map[string]string)
		}
		all[name][key] = value
	}
	return all, nil
}
