package python

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
)

// The settings of --backend-config that mean something here.
const (
	timeoutSetting     = "stub-timeout-seconds"
	interpreterSetting = "python-path"
	memorySetting      = "stub-memory-bytes"
	processorsSetting  = "stub-cpus"
	rightsSetting      = "stub-rights"
	userSetting        = "stub-user"
)

// defaultTimeout is Triton's, frameworkTimeout that of backends which come with the
// server: their frameworks may take long to import.
const (
	defaultTimeout   = 30 * time.Second
	frameworkTimeout = 2 * time.Minute
)

// unused are settings of Triton's backend that ask for nothing here: memory grows and
// shrinks by itself, and has no names.
func unused() []string {
	return []string{"shm-default-byte-size", "shm-growth-byte-size", "shm-region-prefix-name", "shm_message_queue_size", "thread-pool-size"}
}

// settings are those of the backend, or of one that is based on it.
type settings struct {
	// given are as they were given.
	given map[string]string
	// timeout is how long a stub may take to end, and a batch that nobody waits
	// for any more.
	timeout time.Duration
	// interpreter is the Python that was asked for; empty is the one that is found.
	interpreter string
	// limits are those of stubs whose models do not say.
	limits limits
	// inherit gives stubs all of the worker's rights. This and the user are the Python
	// backend's, for the stubs of all.
	inherit bool
	// user is whom stubs run as; empty is the worker's user.
	user string
	// idle are those given that mean nothing.
	idle []string
}

// readAll reads the settings of the backend and of those that are based on it, by
// their names. An error has the reason config_invalid.
func readAll(given map[string]string, based map[string]Based) (map[string]settings, error) {
	own, err := readSettings(backends.Python, given, settings{timeout: defaultTimeout})
	if err != nil {
		return nil, err
	}
	all := map[string]settings{backends.Python: own}
	for _, name := range slices.Sorted(maps.Keys(based)) {
		others := own
		if based[name].File == "" {
			others.timeout = max(own.timeout, frameworkTimeout)
		}
		s, err := readSettings(name, based[name].Settings, others)
		if err != nil {
			return nil, err
		}
		all[name] = s
	}
	return all, nil
}

// readSettings reads those of one backend, and takes from others what it has not. A
// backend that is based on this one may have settings that nobody knows.
func readSettings(backend string, given map[string]string, others settings) (settings, error) {
	s := others
	s.given, s.idle = given, nil
	for _, key := range slices.Sorted(maps.Keys(given)) {
		value := given[key]
		switch {
		case key == timeoutSetting:
			if err := s.setTimeout(value); err != nil {
				return s, errs.New(errs.ConfigInvalid, "--backend-config=%s,%s=%s: %v", backend, key, value, err)
			}
		case key == interpreterSetting:
			s.interpreter = value
		case key == userSetting && backend == backends.Python:
			s.user = value
		case key == rightsSetting && backend == backends.Python:
			if err := s.setRights(value); err != nil {
				return s, err
			}
		case key == memorySetting || key == processorsSetting:
			if err := s.limits.set(key == memorySetting, value); err != nil {
				return s, errs.New(errs.ConfigInvalid, "--backend-config=%s,%s=%s: %v", backend, key, value, err)
			}
		case key == modelconfig.MaxBatchSizeSetting && backends.Get(backend).CompletesTensors:
			if err := checkRows(backend, value); err != nil {
				return s, err
			}
		case backend != backends.Python || slices.Contains(unused(), key):
			s.idle = append(s.idle, key)
		default:
			return s, errs.New(errs.ConfigInvalid, "--backend-config=%s,%s=%s: the backend's settings are %s; %s are accepted and mean nothing",
				backend, key, value, []string{timeoutSetting, interpreterSetting, memorySetting, processorsSetting, rightsSetting, userSetting}, unused())
		}
	}
	return s, nil
}

func (s *settings) setRights(value string) error {
	if value != "least" && value != "inherit" {
		return errs.New(errs.ConfigInvalid, "--backend-config=%s,%s=%s: give least, or inherit for all rights of the worker", backends.Python, rightsSetting, value)
	}
	s.inherit = value == "inherit"
	return nil
}

func (s *settings) setTimeout(text string) error {
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || n == 0 {
		return errors.New("give whole seconds, at least 1")
	}
	s.timeout = time.Duration(n) * time.Second //nolint:gosec // 31 bits
	return nil
}

func checkRows(backend, text string) error {
	if _, err := strconv.ParseUint(text, 10, 31); err != nil {
		return errs.New(errs.ConfigInvalid, "--backend-config=%s,%s=%s: it is a number of rows, 0 or more", backend, modelconfig.MaxBatchSizeSetting, text)
	}
	return nil
}
