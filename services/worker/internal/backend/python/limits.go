package python

import (
	"errors"
	"maps"
	"strconv"

	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/cores"
)

// The parameters by which a model bounds each of its stubs.
const (
	memoryParameter     = "NEREID_STUB_MEMORY_BYTES"
	processorsParameter = "NEREID_STUB_CPUS"
)

// limits are what a stub may have at most; 0 is any.
type limits struct {
	memory     uint64 // bytes
	processors int
}

// set reads one of them.
func (l *limits) set(memory bool, text string) error {
	n, err := strconv.ParseUint(text, 10, 63)
	switch {
	case memory:
		if err != nil {
			return errors.New("give bytes, or 0 for no bound")
		}
		l.memory = n
	case err != nil || n > 1<<16:
		return errors.New("give a number of processors, or 0 for no bound")
	default:
		l.processors = int(n)
	}
	return nil
}

// readLimits reads those of a model.
func (m *model) readLimits() error {
	m.limits = m.settings.limits
	for _, parameter := range []string{memoryParameter, processorsParameter} {
		text, ok := m.version.Config.Parameters[parameter]
		if !ok {
			continue
		}
		if err := m.limits.set(parameter == memoryParameter, text); err != nil {
			return m.failed("parameter %s is %q: %v", parameter, text, err)
		}
	}
	return nil
}

// takeCores finds the cores of an instance: those of its host policy, and of them, where
// processors are bounded, so many that the fewest stubs have.
func (m *model) takeCores(spec backend.InstanceSpec) (cores.Set, error) {
	b := m.backend
	set := b.environment.HostPolicies[backend.HostPolicy(spec.HostPolicy, spec.Kind, spec.Device)]
	if m.limits.processors == 0 {
		return set, nil
	}
	if set.Empty() {
		var err error
		if set, err = cores.Allowed(); err != nil {
			return set, m.failed("%v", err)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	set = set.Least(m.limits.processors, b.cores)
	for core := range set.All() {
		b.cores[core]++
	}
	return set, nil
}

// giveCores is the end of an instance with these cores.
func (m *model) giveCores(set cores.Set) {
	if m.limits.processors == 0 {
		return
	}
	b := m.backend
	b.mu.Lock()
	defer b.mu.Unlock()
	for core := range set.All() {
		b.cores[core]--
	}
	maps.DeleteFunc(b.cores, func(_, n int) bool { return n == 0 })
}
