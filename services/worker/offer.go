package worker

import (
	"strconv"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/worker/internal/memory"
)

// ParseLabels reads labels as the flag --label has them. Errors have the reason
// config_invalid.
func ParseLabels(given []string) (map[string]string, error) {
	if len(given) == 0 {
		return nil, nil
	}
	labels := make(map[string]string, len(given))
	for _, text := range given {
		key, value, ok := strings.Cut(text, "=")
		if _, twice := labels[key]; !ok || key == "" || value == "" || twice {
			return nil, errs.New(errs.ConfigInvalid, "--label=%s: want KEY=VALUE, each key once", text)
		}
		labels[key] = value
	}
	return labels, nil
}

// ParseBudget reads an amount of memory as the flag --memory-budget has it: a
// part of what the process may use, such as 90%, a size such as 8GiB or 512MiB,
// or 0 for no bound. Errors have the reason config_invalid.
func ParseBudget(text string) (uint64, error) {
	if percent, ok := strings.CutSuffix(text, "%"); ok {
		n, err := strconv.ParseUint(percent, 10, 8)
		if err != nil || n < 1 || n > 100 {
			return 0, errs.New(errs.ConfigInvalid, "--memory-budget=%s: want a part from 1%% to 100%%", text)
		}
		return memory.Linux().Limit() / 100 * n, nil
	}
	for unit, shift := range map[string]int{"KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40} {
		if number, ok := strings.CutSuffix(text, unit); ok {
			n, err := strconv.ParseUint(number, 10, 64-40)
			if err != nil {
				return 0, errs.New(errs.ConfigInvalid, "--memory-budget=%s: want a whole number of %s", text, unit)
			}
			return n << shift, nil
		}
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, errs.New(errs.ConfigInvalid, "--memory-budget=%s: want a part such as 90%%, a size such as 8GiB, or 0 for no bound", text)
	}
	return n, nil
}
