package worker

import (
	"maps"
	"slices"
	"strconv"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/onnxruntime"
	"github.com/nereid-serving/nereid/services/worker/internal/cores"
)

// backendOptions reads the settings of backends and host policies. Errors
// have the reason config_invalid.
func (c Config) backendOptions() (onnxruntime.Options, error) {
	for _, name := range slices.Sorted(maps.Keys(c.Backends)) {
		if name != "onnxruntime" {
			return onnxruntime.Options{}, errs.New(errs.ConfigInvalid, "--backend-config=%s,…: this server has no settings of a backend '%s'; it has those of onnxruntime", name, name)
		}
	}
	o, err := onnxruntime.Options{}.With(c.Backends["onnxruntime"])
	if err != nil {
		return o, err
	}
	o.Cores = make(map[string]cores.Set, len(c.HostPolicies))
	for _, name := range slices.Sorted(maps.Keys(c.HostPolicies)) {
		if o.Cores[name], err = hostPolicy(name, c.HostPolicies[name]); err != nil {
			return o, err
		}
	}
	return o, nil
}

// hostPolicy reads one policy. Of its two settings the cores are the finer
// one.
func hostPolicy(name string, settings map[string]string) (set cores.Set, err error) {
	for _, key := range []string{"numa-node", "cpu-cores"} {
		value, ok := settings[key]
		if !ok {
			continue
		}
		if set, err = coresOf(key, value); err != nil {
			return set, errs.Wrap(errs.ConfigInvalid, err, "--host-policy=%s,%s=%s: %v", name, key, value, err)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		if key != "numa-node" && key != "cpu-cores" {
			return set, errs.New(errs.ConfigInvalid, "--host-policy=%s,%s=%s: a host policy has no such setting; it has numa-node and cpu-cores",
				name, key, settings[key])
		}
	}
	return set, nil
}

func coresOf(key, value string) (cores.Set, error) {
	if key == "cpu-cores" {
		return cores.Parse(value)
	}
	n, err := strconv.ParseUint(value, 10, 16)
	if err != nil {
		return cores.Set{}, errs.New(errs.ConfigInvalid, "it is the number of a NUMA node")
	}
	return cores.Node(int(n))
}
