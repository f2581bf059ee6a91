package obs

import (
	"strconv"

	"github.com/nereid-serving/nereid/libs/errs"
)

// The names of the settings that change while a process runs. They are those of Triton's
// logging extension.
const (
	LogInfo    = "log_info"
	LogWarning = "log_warning"
	LogError   = "log_error"
	LogVerbose = "log_verbose_level"
	LogFormat  = "log_format"
)

// LogSettings are settings of a log that differ from its process's flags, by their names
// and as the texts of their values.
type LogSettings struct {
	Values map[string]string
	// Revision grows with each change.
	Revision uint64
}

// With returns the configuration with settings in the place of its own, as their names
// and the texts of their values. It passes over names that it does not know: those of a
// later release. The error has the reason invalid_parameter.
func (c LogConfig) With(settings map[string]string) (LogConfig, error) {
	for name, text := range settings {
		var err error
		switch name {
		case LogInfo:
			c.Info, err = strconv.ParseBool(text)
		case LogWarning:
			c.Warning, err = strconv.ParseBool(text)
		case LogError:
			c.Error, err = strconv.ParseBool(text)
		case LogVerbose:
			var level uint64
			level, err = strconv.ParseUint(text, 10, 32)
			c.Verbose = uint32(level) //nolint:gosec // 32 bits were asked for
		case LogFormat:
			if _, err := encoderOf(text); err != nil || text == "" {
				return c, errs.New(errs.InvalidParameter, "invalid argument for log_format, got: %s", text)
			}
			c.Format = text
		}
		if err != nil {
			return c, errs.Wrap(errs.InvalidParameter, err, "the value of %s cannot be %q", name, text)
		}
	}
	return c, nil
}
