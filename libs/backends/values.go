package backends

import (
	"fmt"
	"strconv"
	"strings"
)

// ParseInt reads an integer of a model's parameter, with the error of Triton's
// backends.
func ParseInt(text string) (int, error) {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("failed to convert '%s' to integral number", text)
	}
	return int(n), nil
}

// ParseBool reads a switch of a model's parameter in any case: true, on and 1, or
// false, off and 0. The error is that of Triton's backends.
func ParseBool(text string) (bool, error) {
	switch strings.ToLower(text) {
	case "true", "on", "1":
		return true, nil
	case "false", "off", "0":
		return false, nil
	}
	return false, fmt.Errorf("failed to convert '%s' to boolean", text)
}

// MaxThreads bounds the number of threads, against typing errors.
const MaxThreads = 1 << 16

// ParseThreads reads a number of threads. 0 and, as in Triton, negative numbers are the
// backend's choice.
func ParseThreads(text string) (int, error) {
	n, err := ParseInt(text)
	if err == nil && n > MaxThreads {
		err = fmt.Errorf("%d are more than %d threads", n, MaxThreads)
	}
	return max(n, 0), err
}

// ParseExecutionMode reads ONNX Runtime's execution_mode: whether the nodes of a
// graph may run in parallel.
func ParseExecutionMode(text string) (parallel bool, err error) {
	if text == "" {
		return false, nil
	}
	n, err := ParseInt(text)
	if err == nil && n != 0 && n != 1 {
		err = fmt.Errorf("Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got %d .", n) //nolint:staticcheck,revive // Triton's text
	}
	return n == 1, err
}
