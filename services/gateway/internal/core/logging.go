package core

import (
	"context"
	"strconv"

	"github.com/nereid-serving/nereid/libs/errs"
)

// LogSettings are the settings of the server's log.
type LogSettings struct {
	File                 string
	Info, Warning, Error bool
	Verbose              uint32
	Format               string
}

// LogChanges are the settings to change; nil leaves a setting unchanged.
type LogChanges struct {
	Info, Warning, Error *bool
	Verbose              *uint32
	Format               *string
}

// Logging reads and changes the log settings.
type Logging interface {
	Settings() LogSettings
	// Set changes settings, named as in Triton's logging extension: all of them, or none if it returns an
	// error.
	Set(ctx context.Context, changes map[string]string) error
}

// LogSettings returns the settings of the log.
func (g *Gateway) LogSettings() (LogSettings, error) {
	if g.logging == nil {
		return LogSettings{}, errs.New(errs.Unsupported, "the log of this server has no settings to be read or changed")
	}
	return g.logging.Settings(), nil
}

// ChangeLog changes log settings and returns all settings.
func (g *Gateway) ChangeLog(ctx context.Context, c LogChanges) (LogSettings, error) {
	if _, err := g.LogSettings(); err != nil {
		return LogSettings{}, err
	}
	changes := make(map[string]string)
	for name, value := range map[string]*bool{"log_info": c.Info, "log_warning": c.Warning, "log_error": c.Error} {
		if value != nil {
			changes[name] = strconv.FormatBool(*value)
		}
	}
	if c.Verbose != nil {
		changes["log_verbose_level"] = strconv.FormatUint(uint64(*c.Verbose), 10)
	}
	if c.Format != nil {
		changes["log_format"] = *c.Format
	}
	if len(changes) > 0 {
		if err := contextError(ctx, g.logging.Set(ctx, changes)); err != nil {
			return LogSettings{}, err
		}
	}
	return g.logging.Settings(), nil
}

// LogFormat reports whether clients may choose the format.
func LogFormat(format string) bool {
	switch format {
	case "default", "ISO8601", "text", "json":
		return true
	}
	return false
}

// LogFileFixed is the error for a request to change the log file: whoever chooses the file could write anywhere
// with the server's rights.
func LogFileFixed() error {
	return errs.New(errs.Unsupported, "log file location can not be updated through network protocol")
}
