package worker

import (
	"maps"
	"slices"
	"strconv"

	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/worker/internal/cores"
)

// hostPolicies parses the cores of the host policies. Errors have the reason config_invalid.
func (c Config) hostPolicies() (map[string]cores.Set, error) {
	given, err := config.Named("host-policy", c.HostPolicy)
	if err != nil {
		return nil, err
	}
	policies := make(map[string]cores.Set, len(given))
	for _, name := range slices.Sorted(maps.Keys(given)) {
		set, err := hostPolicy(name, given[name])
		if err != nil {
			return nil, err
		}
		policies[name] = set
	}
	return policies, nil
}

// hostPolicy parses one policy. If both settings are given, cpu-cores takes precedence as the finer one.
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
