package worker

import (
	"strconv"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/worker/internal/memory"
)

// labels returns the worker's labels, including that of its pool. Errors have the reason config_invalid.
func (c Config) labels() (map[string]string, error) {
	labels := make(map[string]string, len(c.Label)+1)
	for _, text := range c.Label {
		key, value, ok := strings.Cut(text, "=")
		if _, twice := labels[key]; !ok || key == "" || value == "" || twice {
			return nil, errs.New(errs.ConfigInvalid, "--label=%s: want KEY=VALUE, each key once", text)
		}
		labels[key] = value
	}
	if c.Pool == "" {
		return labels, nil
	}
	if given := labels[infer.PoolLabel]; given != "" {
		return nil, errs.New(errs.ConfigInvalid, "--label=pool=%s: a worker's pool is given by --pool", given)
	}
	labels[infer.PoolLabel] = c.Pool
	return labels, nil
}

// memoryBudget returns how many bytes models may use, batchMemory how many the inputs of batches may use; 0 is no
// limit. Errors have the reason config_invalid.
func (c Config) memoryBudget() (uint64, error) { return sizeOf("--memory-budget", c.MemoryBudget) }
func (c Config) batchMemory() (uint64, error)  { return sizeOf("--batch-memory", c.BatchMemory) }

// sizeOf parses a percentage of the available memory, or a size.
func sizeOf(flag, text string) (uint64, error) {
	if percent, ok := strings.CutSuffix(text, "%"); ok {
		n, err := strconv.ParseUint(percent, 10, 8)
		if err != nil || n < 1 || n > 100 {
			return 0, errs.New(errs.ConfigInvalid, "%s=%s: want a part from 1%% to 100%%", flag, text)
		}
		return memory.Linux().Limit() / 100 * n, nil
	}
	for unit, shift := range map[string]int{"KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40} {
		if number, ok := strings.CutSuffix(text, unit); ok {
			n, err := strconv.ParseUint(number, 10, 63-shift)
			if err != nil {
				return 0, errs.New(errs.ConfigInvalid, "%s=%s: want a whole number of %s, less than 2^63 bytes", flag, text, unit)
			}
			return n << shift, nil
		}
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, errs.New(errs.ConfigInvalid, "%s=%s: want a part such as 90%%, a size such as 8GiB, or 0 for no bound", flag, text)
	}
	return n, nil
}
