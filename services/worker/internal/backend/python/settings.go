package python

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/errs"
)

// The settings of --backend-config that mean something here.
const (
	timeoutSetting     = "stub-timeout-seconds"
	interpreterSetting = "python-path"
	memorySetting      = "stub-memory-bytes"
	processorsSetting  = "stub-cpus"
)

// defaultTimeout is Triton's.
const defaultTimeout = 30 * time.Second

// unused are settings of Triton's backend that ask for nothing here: memory grows and
// shrinks by itself, and has no names.
func unused() []string {
	return []string{"shm-default-byte-size", "shm-growth-byte-size", "shm-region-prefix-name", "shm_message_queue_size", "thread-pool-size"}
}

// settings are those of the backend.
type settings struct {
	// timeout is how long a stub may take to end, and a batch that nobody waits
	// for any more.
	timeout time.Duration
	// interpreter is the Python that was asked for; empty is the one that is found.
	interpreter string
	// limits are those of stubs whose models do not say.
	limits limits
	// idle are those given that mean nothing.
	idle []string
}

// readSettings reads them. An error has the reason config_invalid.
func readSettings(given map[string]string) (settings, error) {
	s := settings{timeout: defaultTimeout}
	for _, key := range slices.Sorted(maps.Keys(given)) {
		value := given[key]
		switch {
		case key == timeoutSetting:
			n, err := strconv.ParseUint(value, 10, 31)
			if err != nil || n == 0 {
				return s, errs.New(errs.ConfigInvalid, "--backend-config=%s,%s=%s: give whole seconds, at least 1", backends.Python, key, value)
			}
			s.timeout = time.Duration(n) * time.Second //nolint:gosec // 31 bits
		case key == interpreterSetting:
			s.interpreter = value
		case key == memorySetting || key == processorsSetting:
			if err := s.limits.set(key == memorySetting, value); err != nil {
				return s, errs.New(errs.ConfigInvalid, "--backend-config=%s,%s=%s: %v", backends.Python, key, value, err)
			}
		case slices.Contains(unused(), key):
			s.idle = append(s.idle, key)
		default:
			return s, errs.New(errs.ConfigInvalid, "--backend-config=%s,%s=%s: the backend's settings are %s; %s are accepted and mean nothing",
				backends.Python, key, value, []string{timeoutSetting, interpreterSetting, memorySetting, processorsSetting}, unused())
		}
	}
	return s, nil
}
